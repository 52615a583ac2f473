#include "client/cli/storage_bench.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/percentile.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

double MedianRatio(const std::vector<double>& values, const std::vector<double>& bounds) {
  PAGODA_CHECK(values.size() == bounds.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / bounds[i]);
  return Median(ratios);
}

std::string RateNote(const RatePairs& pairs, const DiskResult& disk) {
  return absl::StrFormat("%s, %s %s, depth %d, %s I/O", FormatRate(Median(pairs.rates)), disk.tool,
                         FormatRate(Median(pairs.probes)), disk.depth,
                         disk.direct_io ? "direct" : "buffered");
}

}  // namespace

StorageBenchOptions StorageBenchOptions::Quick() {
  StorageBenchOptions quick;
  quick.pairs = 3;
  quick.disk_pages = 64;
  quick.restart_pages = 50'000;
  quick.busy_seconds = 0.5;
  return quick;
}

double RatePairs::ratio() const { return MedianRatio(rates, probes); }
double BusyResult::ratio() const { return MedianRatio(busy_p99, idle_p99); }

absl::Span<const absl::string_view> StorageMeasures() {
  static constexpr std::array<absl::string_view, 5> kNames = {"disk", "restart", "directory",
                                                              "lookup", "busy"};
  return kNames;
}

absl::StatusOr<StorageBenchReport> RunStorageBench(const StorageBenchOptions& options,
                                                   const std::vector<std::string>& only,
                                                   const BenchProgress& progress) {
  const auto wanted = [&](absl::string_view name) {
    return only.empty() || std::find(only.begin(), only.end(), std::string(name)) != only.end();
  };
  StorageBenchReport report;
  report.folder = options.folder;
  if (wanted("disk")) {
    PAGODA_ASSIGN_OR_RETURN(report.disk, MeasureDisk(options, progress));
  }
  if (wanted("restart")) {
    PAGODA_ASSIGN_OR_RETURN(report.restart, MeasureRestart(options, progress));
  }
  if (wanted("directory")) {
    PAGODA_ASSIGN_OR_RETURN(report.directory, MeasureDirectory(options, progress));
  }
  if (wanted("lookup")) {
    PAGODA_ASSIGN_OR_RETURN(report.lookup, MeasureLookup(progress));
  }
  if (wanted("busy")) {
    PAGODA_ASSIGN_OR_RETURN(report.busy, MeasureBusy(options, progress));
  }
  return report;
}

std::string StorageBenchText(const StorageBenchReport& report) {
  TextTable table({{"measure"}, {"result", Align::kRight}, {"aim", Align::kRight}, {"detail"}});
  if (report.disk.has_value()) {
    table.AddRow({"cold read of 64 pages of 2 MiB, of the disk alone",
                  absl::StrFormat("%.2f", report.disk->read.ratio()), ">= 0.7",
                  RateNote(report.disk->read, *report.disk)});
    table.AddRow({"write, flushed, of the disk alone",
                  absl::StrFormat("%.2f", report.disk->write.ratio()), ">= 0.5",
                  RateNote(report.disk->write, *report.disk)});
  }
  if (report.restart.has_value()) {
    table.AddRow({absl::StrCat("restart with ", FormatCount(report.restart->pages), " pages"),
                  FormatSeconds(report.restart->seconds), "< 10 s", ""});
    table.AddRow({"resident memory after it",
                  FormatBytes(static_cast<double>(report.restart->rss_bytes)), "< 300 MB", ""});
  }
  if (report.directory.has_value()) {
    table.AddRow({"memory of the directory, per page",
                  absl::StrFormat("%.0f B", report.directory->bytes_per_page), "<= 200 B",
                  absl::StrCat(FormatCount(report.directory->pages), " pages, heap")});
  }
  if (report.lookup.has_value()) {
    table.AddRow({"lookup, keys per second of one core",
                  absl::StrFormat("%.1f M", report.lookup->keys_per_second / 1e6), ">= 2 M",
                  absl::StrCat(FormatCount(report.lookup->keys), " keys, touch and lease")});
  }
  if (report.busy.has_value()) {
    table.AddRow({"p99 of a fetch from host memory, busy over idle",
                  absl::StrFormat("%.2f", report.busy->ratio()), "<= 2",
                  absl::StrFormat("%s busy, %s idle, SSD at %s",
                                  FormatSeconds(Median(report.busy->busy_p99)),
                                  FormatSeconds(Median(report.busy->idle_p99)),
                                  FormatRate(report.busy->write_rate))});
  }
  return absl::StrCat("folder ", report.folder, "\n\n", table.Render());
}

Json StorageBenchJson(const StorageBenchReport& report) {
  Json json = {{"folder", report.folder}};
  if (report.disk.has_value()) {
    json["disk_probe"] = report.disk->tool;
    json["direct_io"] = report.disk->direct_io;
    json["depth"] = report.disk->depth;
    json["ssd_read_ratio_fio"] = report.disk->read.ratio();
    json["ssd_read_bytes_per_second"] = Median(report.disk->read.rates);
    json["ssd_write_ratio_fio"] = report.disk->write.ratio();
    json["ssd_write_bytes_per_second"] = Median(report.disk->write.rates);
  }
  if (report.restart.has_value()) {
    json["restart_pages"] = report.restart->pages;
    json["restart_seconds"] = report.restart->seconds;
    json["restart_rss_bytes"] = report.restart->rss_bytes;
  }
  if (report.directory.has_value()) {
    json["directory_pages"] = report.directory->pages;
    json["directory_bytes_per_page"] = report.directory->bytes_per_page;
  }
  if (report.lookup.has_value()) json["lookup_keys_per_second"] = report.lookup->keys_per_second;
  if (report.busy.has_value()) {
    json["host_p99_ratio_busy"] = report.busy->ratio();
    json["host_p99_idle_seconds"] = Median(report.busy->idle_p99);
    json["host_p99_busy_seconds"] = Median(report.busy->busy_p99);
    json["busy_write_bytes_per_second"] = report.busy->write_rate;
  }
  return json;
}

}  // namespace pagoda::cli
