#include "storage/policy/s3fifo_policy.h"

#include <algorithm>
#include <optional>

namespace pagoda::policy {
namespace {

// An entry's word: its place in its queue (it counts up), whether that is the main one, its uses.
constexpr uint64_t kUseMask = 3;  // more uses are not told apart
constexpr uint64_t kInMain = 4;
constexpr int kPlaceShift = 3;

constexpr uint64_t kPromotingUses = 2;  // in the small queue
constexpr int64_t kSmallPart = 10;      // a tenth
// The ghosts stand for what the main queue holds: nine tenths of the entries.
constexpr int64_t GhostCountMax(int64_t entry_count) { return entry_count * 9 / 10; }

}  // namespace

void S3FifoPolicy::OnInsert(const NewEntry& entry) {
  if (fingerprints_.size() <= entry.id) fingerprints_.resize(size_t{entry.id} + 1);
  fingerprints_[entry.id] = entry.fingerprint;
  word(entry.id) = next_place_++ << kPlaceShift;
  if (ghosts_.Take(entry.fingerprint)) {
    word(entry.id) |= kInMain;
  } else {
    small_bytes_ += entry.bytes;
  }
  Enqueue(entry.id);
}

void S3FifoPolicy::OnTouch(EntryId id) {
  if ((word(id) & kUseMask) < kUseMask) ++word(id);
}

void S3FifoPolicy::OnResize(EntryId id, int64_t change_bytes) {
  if ((word(id) & kInMain) == 0) small_bytes_ += change_bytes;
}

void S3FifoPolicy::OnRemove(EntryId id) {
  if ((word(id) & kInMain) != 0) return;
  small_bytes_ -= bytes_of(id);
  ghosts_.Add(fingerprints_[id]);
  ghosts_.Trim(GhostCountMax(entry_count()));
}

uint64_t S3FifoPolicy::OrderOf(EntryId id) const {
  constexpr int kRoundShift = 61;  // places stay below
  const uint64_t use_count = word(id) & kUseMask;
  const bool in_main = (word(id) & kInMain) != 0;
  const uint64_t rounds = in_main ? 1 + use_count : use_count >= kPromotingUses ? 1 : 0;
  return rounds << kRoundShift | word(id) >> kPlaceShift;
}

void S3FifoPolicy::OnPick() {
  for (const EntryId id : offered_) Enqueue(id);
  offered_.clear();
  picked_small_bytes_ = 0;
}

void S3FifoPolicy::OnPicked(EntryId id) {
  if ((word(id) & kInMain) == 0) picked_small_bytes_ += bytes_of(id);
}

EntryId S3FifoPolicy::NextVictim() {
  while (!small_.empty() || !main_.empty()) {
    const Candidate candidate = TakeFromSmall() ? small_.Pop() : main_.Pop();
    const EntryId id = candidate.id();
    if (!queued(id) || candidate.key() != word(id) >> kPlaceShift) continue;  // gone, or moved
    set_queued(id, false);
    const uint64_t use_count = word(id) & kUseMask;
    const bool in_main = (word(id) & kInMain) != 0;
    if (!MayGo(id)) {
      MoveToMain(id, in_main ? use_count : 0);
    } else if (in_main && use_count > 0) {
      MoveToMain(id, use_count - 1);
      Enqueue(id);
    } else if (!in_main && use_count >= kPromotingUses) {
      MoveToMain(id, 0);
      Enqueue(id);
    } else {
      offered_.push_back(id);
      return id;
    }
  }
  return kNoEntry;
}

bool S3FifoPolicy::TakeFromSmall() const {
  if (small_.empty() || main_.empty()) return main_.empty();
  const int64_t whole_bytes = capacity_bytes() > 0 ? capacity_bytes() : bytes();
  return kSmallPart * (small_bytes_ - picked_small_bytes_) >= whole_bytes;
}

void S3FifoPolicy::MoveToMain(EntryId id, uint64_t use_count) {
  if ((word(id) & kInMain) == 0) small_bytes_ -= bytes_of(id);
  word(id) = next_place_++ << kPlaceShift | kInMain | use_count;
}

void S3FifoPolicy::Enqueue(EntryId id) {
  if (!resident(id) || queued(id)) return;
  CandidateHeap& queue = (word(id) & kInMain) != 0 ? main_ : small_;
  if (queue.MostlyStale(entry_count())) Clean(queue);
  set_queued(id, true);
  queue.Push({word(id) >> kPlaceShift, id});
}

void S3FifoPolicy::Clean(CandidateHeap& queue) {
  const uint64_t main_mark = &queue == &main_ ? kInMain : 0;
  queue.Clean([&](EntryId id) -> std::optional<uint64_t> {
    if (!queued(id) || (word(id) & kInMain) != main_mark) return std::nullopt;
    return word(id) >> kPlaceShift;
  });
}

}  // namespace pagoda::policy
