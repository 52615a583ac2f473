#include "client/path_stats.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"

namespace pagoda::client {
namespace {

constexpr double kStep = 1.2;

std::string MegabytesText(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

std::string TimesText(absl::Duration p50, absl::Duration p99) {
  return absl::StrFormat("p50 %.3g ms, p99 %.3g ms", absl::ToDoubleMilliseconds(p50),
                         absl::ToDoubleMilliseconds(p99));
}

}  // namespace

std::string PathStats::ToLine(absl::string_view path) const {
  std::string line = absl::StrCat(path, ": fetched ", fetched_pages, " pages, ",
                                  MegabytesText(fetched_bytes), " in ", fetches, " fetches");
  if (fetches > 0) absl::StrAppend(&line, " (", TimesText(fetch_p50, fetch_p99), ")");
  absl::StrAppend(&line, "; pushed ", pushed_pages, " pages, ", MegabytesText(pushed_bytes));
  if (pushed_pages > 0) absl::StrAppend(&line, " (", TimesText(push_p50, push_p99), ")");
  return absl::StrCat(line, "; ", fallbacks, " fallbacks");
}

std::string ClientStats::PathLines() const {
  std::string lines;
  if (shm.any()) absl::StrAppend(&lines, shm.ToLine("shm"), "\n");
  if (nccl.any()) absl::StrAppend(&lines, nccl.ToLine("nccl"), "\n");
  if (grpc.any()) absl::StrAppend(&lines, grpc.ToLine("grpc"), "\n");
  return lines;
}

void TimeHistogram::Add(absl::Duration took) {
  const double us = std::max(absl::ToDoubleMicroseconds(took), 1.0);
  const auto step = static_cast<size_t>(std::ceil(std::log(us) / std::log(kStep)));
  ++counts_[std::min(step, kSteps - 1)];
  ++total_;
}

absl::Duration TimeHistogram::Quantile(double share) const {
  if (total_ == 0) return absl::ZeroDuration();
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(total_)));
  int64_t seen = 0;
  size_t step = 0;
  while (step + 1 < kSteps && seen + counts_[step] < rank) seen += counts_[step++];
  return absl::Microseconds(std::pow(kStep, static_cast<double>(step)));
}

void PathCounter::AddFetch(int64_t pages, int64_t bytes, absl::Duration took) {
  absl::MutexLock lock(&mutex_);
  ++stats_.fetches;
  stats_.fetched_pages += pages;
  stats_.fetched_bytes += bytes;
  fetches_.Add(took);
}

void PathCounter::AddPush(int64_t bytes, absl::Duration took) {
  absl::MutexLock lock(&mutex_);
  ++stats_.pushed_pages;
  stats_.pushed_bytes += bytes;
  pushes_.Add(took);
}

void PathCounter::AddFallback() {
  absl::MutexLock lock(&mutex_);
  ++stats_.fallbacks;
}

PathStats PathCounter::Stats() const {
  absl::MutexLock lock(&mutex_);
  PathStats stats = stats_;
  stats.fetch_p50 = fetches_.Quantile(0.5);
  stats.fetch_p99 = fetches_.Quantile(0.99);
  stats.push_p50 = pushes_.Quantile(0.5);
  stats.push_p99 = pushes_.Quantile(0.99);
  return stats;
}

}  // namespace pagoda::client
