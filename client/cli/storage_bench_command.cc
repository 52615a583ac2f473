// pagoda bench storage: the store in this process against the disk it stands on.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"
#include "client/cli/storage_bench.h"
#include "client/cli/temp_folder.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct StorageBenchFlags {
  JsonOptions json;
  std::string folder;
  std::vector<std::string> only;
  bool quick = false;
  std::string open_store;  // the child of the restart measure
};

// A folder of its own inside the named one, so that nothing of others is touched or removed.
class WorkFolder {
 public:
  explicit WorkFolder(std::string path) : path_(std::move(path)) {}
  ~WorkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  absl::Status Make() const {
    std::error_code error;
    if (std::filesystem::create_directory(path_, error)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot make ", path_, ": ", error ? error.message() : "it exists; remove it"));
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

absl::Status RunStorageBenchCommand(const StorageBenchFlags& flags) {
  if (!flags.open_store.empty()) return OpenStoreAndReport(flags.open_store);
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(flags.json));
  CatchInterrupts();
  std::error_code error;
  const std::string parent =
      flags.folder.empty() ? std::filesystem::temp_directory_path(error).string() : flags.folder;
  const WorkFolder folder(parent + "/pagoda-bench-storage");
  PAGODA_RETURN_IF_ERROR(folder.Make());
  StorageBenchOptions options = flags.quick ? StorageBenchOptions::Quick() : StorageBenchOptions();
  options.folder = folder.path();
  std::optional<ProgressLine> line;
  const auto progress = [&line](const std::string& step) {
    line.reset();
    line.emplace(stderr, step);
  };
  PAGODA_ASSIGN_OR_RETURN(StorageBenchReport report,
                          RunStorageBench(options, flags.only, progress));
  line.reset();
  report.folder = parent;
  PrintText(flags.json, StorageBenchText(report));
  return WriteJson(flags.json, StorageBenchJson(report));
}

}  // namespace

void AddStorageBenchCommand(CommandLine& commands, CLI::App* bench) {
  auto flags = std::make_shared<StorageBenchFlags>();
  CLI::App* const app = commands.AddApp(
      bench, "storage", "Measure the store against the disk it stands on",
      "Without a daemon: the store runs in this process. Each ratio is the median of pairs that\n"
      "alternate between the store and the disk alone (fio; without it a loop of our own).\n"
      "The full form writes about 15 GB to the folder and removes it.\n\n"
      "Example: pagoda bench storage --folder /var/lib/pagoda\n"
      "         pagoda bench storage --quick --only disk --json -\n\n"
      "JSON keys: folder,\n"
      "  disk: disk_probe, direct_io, depth, ssd_read_ratio_fio, ssd_read_bytes_per_second,\n"
      "        ssd_write_ratio_fio, ssd_write_bytes_per_second\n"
      "  restart: restart_pages, restart_seconds, restart_rss_bytes\n"
      "  directory: directory_pages, directory_bytes_per_page\n"
      "  lookup: lookup_keys_per_second\n"
      "  busy: host_p99_ratio_busy, host_p99_idle_seconds, host_p99_busy_seconds,\n"
      "        busy_write_bytes_per_second\n");
  app->add_option("--folder", flags->folder,
                  "on the disk to measure; default: the temporary folder")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory);
  std::vector<std::string> names;
  for (const absl::string_view name : StorageMeasures()) names.emplace_back(name);
  app->add_option("--only", flags->only,
                  "one measure: disk, restart, directory, lookup or busy; may be repeated")
      ->type_name("NAME")
      ->check(CLI::IsMember(names));
  app->add_flag("--quick", flags->quick, "the same measures at a tenth of the size");
  app->add_option("--open-store", flags->open_store)->group("");
  AddJsonFlag(*app, flags->json);
  commands.Add({app, nullptr, [flags] { return RunStorageBenchCommand(*flags); }});
}

}  // namespace pagoda::cli
