// Goal: lru, lfu, attention, hybrid and s3fifo evict what their definitions say. Method: long
// seeded random runs of every event against models that search all entries each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "storage/policy/attention_policy.h"
#include "storage/policy/hybrid_policy.h"
#include "storage/policy/lfu_policy.h"
#include "storage/policy/lru_policy.h"
#include "storage/policy/s3fifo_policy.h"

namespace pagoda::policy {
namespace {

using Ids = std::vector<EntryId>;

struct ModelEntry {
  EntryId parent = kNoEntry;
  int64_t bytes = 0;
  bool locked = false;
  uint64_t fingerprint = 0;
  uint64_t time = 0;  // of the last use
  uint64_t uses = 0;
  std::deque<double> masses;

  double mean() const {
    double sum = 0;
    for (const double mass : masses) sum += mass;
    return sum / static_cast<double>(masses.size());
  }
};

// Books and the leaf rule; a derived model says which of the evictable entries goes next.
class Model {
 public:
  virtual ~Model() = default;

  std::map<EntryId, ModelEntry> entries;
  uint64_t now = 1;

  virtual void Insert(EntryId id, EntryId parent, int64_t bytes, uint64_t fingerprint) {
    ModelEntry& entry = entries[id] = ModelEntry();
    entry.parent = parent;
    entry.bytes = bytes;
    entry.fingerprint = fingerprint;
    Use(id);
  }
  virtual void Touch(EntryId id) { Use(id); }
  virtual void Report(EntryId id, double mass) {
    std::deque<double>& masses = entries.at(id).masses;
    masses.push_back(mass);
    if (masses.size() > 5) masses.pop_front();
  }
  virtual void Remove(EntryId id) { entries.erase(id); }
  // Some entry may go now that could not before.
  void Changed() {
    left_ = entries;
    OnChanged();
  }

  Ids Pick(int64_t bytes, const std::set<EntryId>& refused) {
    Begin();
    left_ = entries;
    Ids victims;
    std::set<EntryId> asked;
    for (int64_t picked = 0; picked < bytes;) {
      const EntryId id = Next(asked);
      if (id == kNoEntry) break;
      asked.insert(id);
      if (refused.contains(id)) continue;
      victims.push_back(id);
      picked += left_.at(id).bytes;
      left_.erase(id);
      OnChanged();
    }
    return victims;
  }

 protected:
  virtual void Begin() {}
  virtual void OnChanged() {}
  // The next one that MayGo and is not in `asked`.
  virtual EntryId Next(const std::set<EntryId>& asked) {
    EntryId best = kNoEntry;
    for (const auto& [id, entry] : left_) {
      if (!MayGo(id) || asked.contains(id)) continue;
      if (best == kNoEntry || Before(entry, left_.at(best))) best = id;
    }
    return best;
  }
  virtual bool Before(const ModelEntry& a, const ModelEntry& b) const = 0;

  bool MayGo(EntryId id) const {
    const auto it = left_.find(id);
    if (it == left_.end() || it->second.locked) return false;
    return std::none_of(left_.begin(), left_.end(),
                        [id](const auto& other) { return other.second.parent == id; });
  }
  void Use(EntryId id) {
    entries.at(id).time = now++;
    ++entries.at(id).uses;
  }

  std::map<EntryId, ModelEntry> left_;  // during a pick: without its victims
};

class LruModel : public Model {
  bool Before(const ModelEntry& a, const ModelEntry& b) const override { return a.time < b.time; }
};

class LfuModel : public Model {
  bool Before(const ModelEntry& a, const ModelEntry& b) const override {
    return std::pair(a.uses, a.time) < std::pair(b.uses, b.time);
  }
};

// Masses of the test are sixteenths, so that they and their order survive bfloat16, but means need
// not: they are compared as the policy keeps them.
uint16_t Bits(double value) {
  AttentionHistory history;
  history.Add(1, value);
  return *history.MeanBits(1);
}

class AttentionModel : public Model {
  void Insert(EntryId id, EntryId parent, int64_t bytes, uint64_t fingerprint) override {
    Model::Insert(id, parent, bytes, fingerprint);
    worth_[id] = Average();
  }
  void Touch(EntryId id) override {
    Model::Touch(id);
    if (entries.at(id).masses.empty()) worth_[id] = Average();
  }
  void Report(EntryId id, double mass) override {
    Model::Report(id, mass);
    worth_[id] = Bits(entries.at(id).mean());
  }
  bool Before(const ModelEntry& a, const ModelEntry& b) const override {
    return std::pair(WorthOf(a), a.time) < std::pair(WorthOf(b), b.time);
  }
  uint16_t WorthOf(const ModelEntry& entry) const {
    for (const auto& [id, other] : entries) {
      if (other.time == entry.time) return worth_.at(id);
    }
    return 0;
  }
  uint16_t Average() const {
    double sum = 0;
    int count = 0;
    for (const auto& [id, entry] : entries) {
      if (entry.masses.empty()) continue;
      sum += entry.mean();
      ++count;
    }
    return count == 0 ? 0 : Bits(sum / count);
  }

  std::map<EntryId, uint16_t> worth_;
};

class HybridModel : public Model {
  void Insert(EntryId id, EntryId parent, int64_t bytes, uint64_t fingerprint) override {
    Model::Insert(id, parent, bytes, fingerprint);
    ++uses_;
  }
  void Touch(EntryId id) override {
    Model::Touch(id);
    ++uses_;
  }
  void Remove(EntryId id) override {
    Model::Remove(id);
    ++removals_;
  }
  void Begin() override {
    if (10 * removals_ < snapshot_.size() && uses_ < entries.size()) return;
    left_ = entries;
    snapshot_.clear();
    for (const auto& [id, entry] : entries) {
      if (MayGo(id)) snapshot_.push_back(entry);
    }
    removals_ = uses_ = 0;
  }
  bool Before(const ModelEntry& a, const ModelEntry& b) const override {
    return std::pair(Score(a), a.time) < std::pair(Score(b), b.time);
  }

  template <typename Value>
  double Rank(const ModelEntry& entry, Value value) const {
    double below = 0;
    double count = 0;
    for (const ModelEntry& other : snapshot_) {
      const auto theirs = value(other);
      if (theirs < 0) continue;
      if (theirs < value(entry)) below += 1;
      if (theirs == value(entry)) below += 0.5;
      ++count;
    }
    return count == 0 ? 0.5 : below / count;
  }
  int Score(const ModelEntry& entry) const {
    const auto time = [](const ModelEntry& e) { return static_cast<double>(e.time); };
    const auto uses = [](const ModelEntry& e) { return static_cast<double>(e.uses); };
    const auto mass = [](const ModelEntry& e) { return e.masses.empty() ? -1 : Bits(e.mean()); };
    double score = 0.5 * Rank(entry, time) + 0.2 * Rank(entry, uses);
    double weights = 0.5 + 0.2;
    if (std::any_of(snapshot_.begin(), snapshot_.end(),
                    [](const ModelEntry& e) { return !e.masses.empty(); })) {
      score += 0.3 * (entry.masses.empty() ? 0.5 : Rank(entry, mass));
      weights += 0.3;
    }
    return static_cast<int>(score / weights * 65535);
  }

  std::vector<ModelEntry> snapshot_;
  size_t removals_ = 0;
  size_t uses_ = 0;
};

// Two plain lists, and a set of those whose turn came while they could not go.
class S3FifoModel : public Model {
 public:
  explicit S3FifoModel(int64_t capacity) : capacity_(capacity) {}

 private:
  void Insert(EntryId id, EntryId parent, int64_t bytes, uint64_t fingerprint) override {
    Model::Insert(id, parent, bytes, fingerprint);
    entries.at(id).uses = 0;
    const auto ghost = std::find(ghosts_.begin(), ghosts_.end(), fingerprint);
    (ghost == ghosts_.end() ? small_ : main_).push_back(id);
    // Its place in the list stays: places of taken ghosts count too.
    if (ghost != ghosts_.end()) std::replace(ghosts_.begin(), ghosts_.end(), fingerprint, kTaken);
  }
  void Touch(EntryId id) override {
    Model::Touch(id);
    entries.at(id).uses = std::min<uint64_t>(3, entries.at(id).uses);
  }
  void Remove(EntryId id) override {
    if (std::erase(small_, id) > 0) {
      std::replace(ghosts_.begin(), ghosts_.end(), entries.at(id).fingerprint, kTaken);
      ghosts_.push_back(entries.at(id).fingerprint);
      while (ghosts_.size() > entries.size() * 9 / 10) ghosts_.pop_front();
    }
    std::erase(main_, id);
    blocked_.erase(id);
    entries.erase(id);
  }
  void OnChanged() override {
    std::erase_if(blocked_, [this](EntryId id) { return MayGo(id); });
  }
  EntryId Next(const std::set<EntryId>& asked) override {
    while (true) {
      const EntryId from_small = First(small_, asked);
      const EntryId from_main = First(main_, asked);
      if (from_small == kNoEntry && from_main == kNoEntry) return kNoEntry;
      int64_t small_bytes = 0;
      for (const EntryId id : small_) small_bytes += left_.contains(id) ? left_.at(id).bytes : 0;
      const bool take_small =
          from_main == kNoEntry || (from_small != kNoEntry && 10 * small_bytes >= capacity_);
      const EntryId id = take_small ? from_small : from_main;
      uint64_t& uses = entries.at(id).uses;
      if (!MayGo(id)) {
        blocked_.insert(id);
        if (take_small) uses = 0;
      } else if (take_small && uses >= 2) {
        uses = 0;
      } else if (!take_small && uses > 0) {
        --uses;
      } else {
        return id;
      }
      std::erase(small_, id);
      std::erase(main_, id);
      main_.push_back(id);
    }
  }
  bool Before(const ModelEntry&, const ModelEntry&) const override { return false; }

  EntryId First(const std::vector<EntryId>& queue, const std::set<EntryId>& asked) const {
    for (const EntryId id : queue) {
      if (left_.contains(id) && !asked.contains(id) && !blocked_.contains(id)) return id;
    }
    return kNoEntry;
  }

  static constexpr uint64_t kTaken = 0;
  const int64_t capacity_;
  std::vector<EntryId> small_;
  std::vector<EntryId> main_;
  std::set<EntryId> blocked_;
  std::deque<uint64_t> ghosts_;
};

// ---- One run of both -------------------------------------------------------------------------

void ExpectSameSums(const EvictionPolicy& policy, const Model& model) {
  int64_t bytes = 0;
  int64_t locked_bytes = 0;
  for (const auto& [id, entry] : model.entries) {
    bytes += entry.bytes;
    if (entry.locked) locked_bytes += entry.bytes;
  }
  ASSERT_EQ(policy.bytes(), bytes);
  ASSERT_EQ(policy.locked_bytes(), locked_bytes);
  ASSERT_EQ(policy.entry_count(), static_cast<int64_t>(model.entries.size()));
}

void ExpectEqualRuns(EvictionPolicy& policy, Model& model, uint32_t seed, bool reports) {
  std::mt19937 rng(seed);
  const auto below = [&rng](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
  for (int step = 0; step < 1500; ++step) {
    SCOPED_TRACE(testing::Message() << policy.name() << " seed " << seed << " step " << step);
    const EntryId id = 1 + below(24);
    const auto it = model.entries.find(id);
    const bool there = it != model.entries.end();
    const uint32_t event = below(10);
    if (event <= 2) {
      if (there) continue;
      const EntryId parent = below(id);  // smaller ids are ancestors: no circle
      const int64_t bytes = 1 + below(9);
      policy.Insert({id, parent, bytes, 1000 + id});
      model.Insert(id, parent, bytes, 1000 + id);
    } else if (event <= 4 && there) {
      policy.Touch(id);
      model.Touch(id);
    } else if (event == 5 && there) {
      policy.Remove(id);
      model.Remove(id);
    } else if (event == 6 && there) {
      it->second.locked = !it->second.locked;
      it->second.locked ? policy.Lock(id) : policy.Unlock(id);
    } else if (event == 7 && there) {
      it->second.bytes = 1 + below(9);
      policy.Resize(id, it->second.bytes);
    } else if (event == 8 && there && reports) {
      const double mass = below(17) / 16.0;
      policy.ReportAttention(id, mass);
      model.Report(id, mass);
    } else if (event == 9) {
      const int64_t bytes = below(60);
      const std::set<EntryId> refused = {1 + below(24), 1 + below(24)};
      const Ids victims =
          policy.PickVictims(bytes, [&](EntryId other) { return !refused.contains(other); });
      ASSERT_EQ(victims, model.Pick(bytes, refused));
      if (below(2) == 0) continue;
      for (const EntryId victim : victims) {
        policy.Remove(victim);
        model.Remove(victim);
        model.Changed();
      }
    }
    model.Changed();
    ExpectSameSums(policy, model);
    if (testing::Test::HasFatalFailure()) return;
  }
}

template <typename Policy, typename TheModel>
void ExpectModel() {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Policy policy;
    TheModel model;
    ExpectEqualRuns(policy, model, seed, /*reports=*/seed % 4 != 0);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PolicyModelTest, Lru) { ExpectModel<LruPolicy, LruModel>(); }

TEST(PolicyModelTest, Lfu) { ExpectModel<LfuPolicy, LfuModel>(); }

TEST(PolicyModelTest, Attention) { ExpectModel<AttentionPolicy, AttentionModel>(); }

TEST(PolicyModelTest, AttentionWithoutReportsIsLru) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    AttentionPolicy policy;
    LruModel model;
    ExpectEqualRuns(policy, model, seed, /*reports=*/false);
  }
}

TEST(PolicyModelTest, Hybrid) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    HybridPolicy policy((HybridOptions()));
    HybridModel model;
    ExpectEqualRuns(policy, model, seed, /*reports=*/seed % 4 != 0);
    if (HasFatalFailure()) return;
  }
}

TEST(PolicyModelTest, S3Fifo) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    S3FifoPolicy policy;
    policy.set_capacity_bytes(60);
    S3FifoModel model(60);
    ExpectEqualRuns(policy, model, seed, /*reports=*/false);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace pagoda::policy
