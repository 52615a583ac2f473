#include "storage/prefetch/prefetch_options.h"

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace pagoda::prefetch {
namespace {

absl::Status Bad(absl::string_view field, double value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrFormat("prefetch %s is %g; must be %s", field, value, expected));
}

}  // namespace

absl::Status Options::Validate() const {
  const struct {
    absl::string_view field;
    double value;
  } positive[] = {
      {"bytes_per_second", static_cast<double>(bytes_per_second)},
      {"queue_pages_max", static_cast<double>(queue_pages_max)},
      {"loads_max", static_cast<double>(loads_max)},
      {"layer_time", absl::ToDoubleSeconds(layer_time)},
      {"hint_deadline", absl::ToDoubleSeconds(hint_deadline)},
      {"successors.pages_max", static_cast<double>(successors.pages_max)},
      {"successors.depth_max", static_cast<double>(successors.depth_max)},
      {"heat.half_life", absl::ToDoubleSeconds(heat.half_life)},
      {"heat.host_min", heat.host_min},
      {"heat.pages_max", static_cast<double>(heat.pages_max)},
      {"returns.gaps_min", static_cast<double>(returns.gaps_min)},
      {"returns.conversations_max", static_cast<double>(returns.conversations_max)},
      {"returns.tenants_max", static_cast<double>(returns.tenants_max)},
      {"returns.tail_search_max", static_cast<double>(returns.tail_search_max)},
  };
  for (const auto& [field, value] : positive) {
    if (!(value > 0)) return Bad(field, value, "positive");
  }
  if (!(successors.uses_max >= 2)) {
    return Bad("successors.uses_max", static_cast<double>(successors.uses_max), "2 at least");
  }
  if (!(successors.confidence_min > 0 && successors.confidence_min <= 1)) {
    return Bad("successors.confidence_min", successors.confidence_min, "above 0, at most 1");
  }
  if (!(heat.hbm_min > heat.host_min)) {
    return Bad("heat.hbm_min", heat.hbm_min, absl::StrFormat("above host_min %g", heat.host_min));
  }
  if (!(returns.low > 0 && returns.low < returns.high && returns.high < 1)) {
    return Bad(
        "returns.low", returns.low,
        absl::StrFormat("above 0 and below returns.high %g, which must be below 1", returns.high));
  }
  return absl::OkStatus();
}

}  // namespace pagoda::prefetch
