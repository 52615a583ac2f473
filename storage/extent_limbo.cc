#include "storage/extent_limbo.h"

#include <algorithm>

#include "storage/base/check.h"

namespace pagoda {

ExtentLimbo::Epoch ExtentLimbo::BeginRead() {
  ++readers_[next_epoch_];
  return next_epoch_;
}

void ExtentLimbo::EndRead(Epoch epoch) {
  const auto it = readers_.find(epoch);
  PAGODA_CHECK(it != readers_.end());
  if (--it->second == 0) readers_.erase(it);
}

void ExtentLimbo::Retire(const Extent& extent) {
  waiting_.push_back({extent, next_epoch_++});
  waiting_bytes_ += extent.bytes;
}

void ExtentLimbo::Flushed(Epoch mark) {
  PAGODA_CHECK(mark <= next_epoch_);
  flushed_ = std::max(flushed_, mark);
}

std::vector<Extent> ExtentLimbo::TakeReusable() {
  // A reader of epoch e may have seen the records of everything retired at e or later.
  const Epoch oldest_reader = readers_.empty() ? next_epoch_ : readers_.begin()->first;
  const Epoch end = std::min(flushed_, oldest_reader);
  std::vector<Extent> reusable;
  while (!waiting_.empty() && waiting_.front().epoch < end) {
    reusable.push_back(waiting_.front().extent);
    waiting_bytes_ -= waiting_.front().extent.bytes;
    waiting_.pop_front();
  }
  return reusable;
}

}  // namespace pagoda
