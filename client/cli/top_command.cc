// pagoda top: a daemon's status again and again, with rates.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/counter_rates.h"
#include "client/cli/interrupt.h"
#include "client/cli/status_view.h"
#include "client/cli/text_table.h"
#include "client/cli/top_screen.h"
#include "client/cli/units.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct TopOptions {
  ConnectionOptions connection;
  JsonOptions json;
  double interval_seconds = 1;
  int count = 0;  // frames; 0: until ^C
  bool once = false;
};

std::string RateTable(const std::vector<CounterRate>& rates) {
  TextTable table({{"counter"}, {"per second", Align::kRight}, {"total", Align::kRight}});
  for (const CounterRate& rate : rates) {
    const bool bytes = absl::StrContains(rate.name, "_bytes");
    table.AddRow({rate.name,
                  rate.per_second == 0 ? "-"
                  : bytes              ? FormatRate(rate.per_second)
                                       : FormatCount(static_cast<int64_t>(rate.per_second + 0.5)),
                  bytes ? FormatBytes(static_cast<double>(rate.total))
                        : FormatCount(static_cast<int64_t>(rate.total))});
  }
  return table.empty() ? "" : absl::StrCat("\n", table.Render());
}

Json FrameJson(const v1::StatusResponse& status, const std::vector<CounterRate>& rates) {
  Json frame = StatusJson(status);
  Json per_second = Json::object();
  for (const CounterRate& rate : rates) per_second[rate.name] = rate.per_second;
  frame["counters_per_second"] = std::move(per_second);
  return frame;
}

absl::Status RunTop(const TopOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  const int frame_count = options.once ? 1 : options.count;
  CatchInterrupts();
  AdminConnection admin(options.connection);
  CounterRates rates;
  Json last = Json::object();
  absl::Status away;
  {
    std::optional<TopScreen> screen;
    for (int frame = 0; frame_count == 0 || frame < frame_count; ++frame) {
      if (frame > 0 && !SleepUnlessInterrupted(absl::Seconds(options.interval_seconds))) break;
      const absl::StatusOr<v1::StatusResponse> status = admin.Status();
      if (Interrupted()) break;
      away = status.status();
      // A daemon that was never there is an error; one that restarts is waited for.
      if (!away.ok() && !screen.has_value()) return away;
      if (!screen.has_value()) screen.emplace(TextStream(options.json));
      if (!away.ok()) {
        screen->Draw(absl::StrCat(away.message(), "\nwaiting for it ... (^C ends)\n"));
        continue;
      }
      const std::vector<CounterRate> now = rates.Update(*status, SystemClock().Monotonic());
      screen->Draw(absl::StrCat(StatusHeadline(*status), "\n", TierTable(*status), "\n",
                                ActivityLines(*status), RateTable(now)));
      last = FrameJson(*status, now);
    }
  }
  PAGODA_RETURN_IF_ERROR(away);
  return WriteJson(options.json, last);
}

}  // namespace

void AddTopCommand(CommandLine& commands) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* const app = commands.AddApp(
      "top", "Watch a daemon: status and rates, redrawn every second",
      absl::StrCat("^C ends it and restores the terminal. Not on a terminal the frames follow one\n"
                   "another.\n\n"
                   "Example: pagoda top\n"
                   "         pagoda top --count 10 --interval 0.5 > top.txt\n\n",
                   kStatusJsonKeys, "  of the last frame, and counters_per_second {NAME: rate}\n"));
  AddConnectionFlags(*app, options->connection);
  app->add_option("--interval", options->interval_seconds, "seconds between frames")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  CLI::Option* const count =
      app->add_option("--count", options->count, "frames to show; 0: until ^C")
          ->type_name("N")
          ->check(CLI::Range(0, 1000000))
          ->capture_default_str();
  app->add_flag("--once", options->once, "show one frame: the same as --count 1")->excludes(count);
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunTop(*options); }});
}

}  // namespace pagoda::cli
