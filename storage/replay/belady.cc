// Belady's optimum with bypass: see replay.h.
#include <vector>

#include "storage/base/check.h"
#include "storage/policy/keyed_policy.h"
#include "storage/replay/replay.h"
#include "storage/replay/replay_walk.h"

namespace pagoda::replay {
namespace {

using policy::EntryId;
using policy::kNoEntry;

constexpr uint32_t kNever = UINT32_MAX;

// The request that uses each reference's block next, as runs of equal ones, request by request.
class NextUses {
  struct Run {
    uint32_t count;
    uint32_t next;
  };

 public:
  explicit NextUses(const Trace& trace) : begins_(trace.requests().size()) {
    std::vector<uint32_t> next_use(size_t{trace.id_max()} + 1, kNever);
    for (size_t i = trace.requests().size(); i-- > 0;) {
      begins_[i] = runs_.size();
      for (const BlockRun& run : trace.runs(trace.requests()[i])) {
        for (uint32_t k = 0; k < run.count; ++k) {
          uint32_t& next = next_use[run.first + k];
          if (runs_.size() == begins_[i] || runs_.back().next != next) runs_.push_back({0, next});
          ++runs_.back().count;
          next = static_cast<uint32_t>(i);
        }
      }
    }
  }

  // Walks the references of one request.
  class Cursor {
   public:
    Cursor(const NextUses& uses, size_t request) : run_(&uses.runs_[uses.begins_[request]]) {}
    uint32_t Next() {
      if (taken_ == run_->count) {
        ++run_;
        taken_ = 0;
      }
      ++taken_;
      return run_->next;
    }

   private:
    const Run* run_;
    uint32_t taken_ = 0;
  };

 private:
  std::vector<Run> runs_;
  std::vector<size_t> begins_;
};

class BeladyPolicy final : public policy::KeyedPolicy {
 public:
  BeladyPolicy() : KeyedPolicy(/*leaves_only=*/false) {}
  absl::string_view name() const override { return "belady"; }
  // Of the entry that is used next.
  void SetNext(uint32_t request, uint32_t depth) { next_key_ = ~(uint64_t{request} << 32 | depth); }

 protected:
  void OnInsert(const policy::NewEntry& entry) override { OnTouch(entry.id); }
  void OnTouch(EntryId id) override {
    const uint64_t before = word(id);
    word(id) = next_key_;
    next_key_ < before ? KeyLowered(id) : KeyRaised(id);
  }
  uint64_t KeyOf(EntryId id) const override { return word(id); }

 private:
  uint64_t next_key_ = 0;
};

}  // namespace

absl::StatusOr<ReplayResult> ReplayBelady(const Trace& trace, int64_t capacity_blocks,
                                          ReplayProgress progress) {
  PAGODA_CHECK(capacity_blocks >= 1);
  const NextUses uses(trace);
  BeladyPolicy policy;
  return WalkRequests(trace, policy, progress, [&](size_t index, const TraceRequest& request) {
    if (request.block_count == 0) return;
    NextUses::Cursor cursor(uses, index);
    uint32_t depth = 0;
    for (const BlockRun& run : trace.runs(request)) {
      for (uint32_t k = 0; k < run.count; ++k) {
        const EntryId id = run.first + k;
        policy.SetNext(cursor.Next(), depth++);
        if (policy.resident(id)) {
          policy.Touch(id);
        } else {
          policy.Insert({id, kNoEntry, 1, 0});
          EvictDownTo(capacity_blocks, policy);
        }
      }
    }
  });
}

}  // namespace pagoda::replay
