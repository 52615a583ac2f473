#include "client/cli/counter_rates.h"

#include <algorithm>

namespace pagoda::cli {

std::vector<CounterRate> CounterRates::Update(const v1::StatusResponse& status,
                                              absl::Duration now) {
  const bool same = !instance_id_.empty() && instance_id_ == status.instance_id();
  const double seconds = absl::ToDoubleSeconds(now - last_);
  std::vector<CounterRate> rates;
  for (const auto& [name, total] : status.counters()) {
    CounterRate rate{name, total, 0};
    const auto before = totals_.find(name);
    if (same && before != totals_.end() && total > before->second && seconds > 0) {
      rate.per_second = static_cast<double>(total - before->second) / seconds;
    }
    rates.push_back(std::move(rate));
  }
  std::sort(rates.begin(), rates.end(), [](const CounterRate& a, const CounterRate& b) {
    return a.per_second != b.per_second ? a.per_second > b.per_second : a.name < b.name;
  });
  instance_id_ = status.instance_id();
  last_ = now;
  totals_ = {status.counters().begin(), status.counters().end()};
  return rates;
}

}  // namespace pagoda::cli
