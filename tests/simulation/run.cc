#include "tests/simulation/run.h"

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/policy/make_policy.h"
#include "tests/simulation/books.h"

namespace pagoda::simulation {
namespace {

constexpr int64_t kCompareEvery = 32;    // steps
constexpr int64_t kLoadStepsMax = 4000;  // until a load is answered, on a slow disk too
constexpr int64_t kStuckTicksMax = 400;  // with something to evict, and nothing evicted
constexpr int kClients = 4;
constexpr int kRequests = 3;  // of a client at a time

SimStoreOptions OptionsOf(Rng& rng) {
  SimStoreOptions options;
  // From tight to roomy: all pages in raw16 are about 6 MiB.
  options.host_bytes = int64_t{600000} + rng.Below(1500000);
  options.ssd_bytes = int64_t{800000} + rng.Below(4000000);
  options.writes_max = 1 + rng.Below(12);
  options.admit_to_ssd_twice_used = rng.Chance(250);
  options.prefetch.bytes_per_second = int64_t{200000} + rng.Below(4000000);
  options.prefetch.queue_pages_max = 1 + rng.Below(64);
  options.prefetch.heat.half_life = absl::Seconds(2);
  options.prefetch.returns.gaps_min = 2;
  options.prefetch.returns.turn_min = absl::Milliseconds(200);
  options.prefetch.hint = rng.Chance(800);
  options.prefetch.next_page = rng.Chance(800);
  options.prefetch.hotness = rng.Chance(800);
  options.prefetch.predicted_return = rng.Chance(800);
  return options;
}

class Run {
 public:
  Run(const Universe& universe, uint64_t seed)
      : universe_(universe),
        rng_(seed),
        options_(OptionsOf(rng_)),
        disk_(universe),
        books_(universe),
        load_began_(static_cast<size_t>(universe.key_count()), -1) {
    for (int i = 0; i < kClients; ++i) NewClient(i);
    Start();
  }

  std::string Steps(int64_t count, Tally& tally);

 private:
  void Start() {
    store_ = std::make_unique<SimStore>(options_, universe_, disk_, books_);
    SetSomePolicy(Tier::kHost);
    SetSomePolicy(Tier::kSsd);
    store_->Rebuild(now_);
  }
  void SetSomePolicy(Tier tier) {
    const auto names = policy::PolicyNames();
    store_->SetPolicy(tier, names[static_cast<size_t>(rng_.Below(static_cast<int>(names.size())))]);
  }
  void NewClient(int i) { sessions_[static_cast<size_t>(i)] = absl::StrCat("s", next_session_++); }
  const std::string& SomeSession() { return sessions_[static_cast<size_t>(rng_.Below(kClients))]; }
  static int ScopeOf(const std::string& session) {
    return (session.back() - '0') % Universe::kScopes;
  }
  // Skewed: some pages are looked up often.
  int SomeKey(int scope_index) {
    constexpr int kPages = Universe::kTrees * Universe::kTreePages;
    return scope_index * kPages + rng_.Below(rng_.Below(kPages) + 1);
  }
  int AnyKey() { return SomeKey(rng_.Below(Universe::kScopes)); }

  void Step();
  void ClientStep(int dice);
  void StoreStep(int dice);
  void DiskStep();
  void PushSome();
  void LookUpSome();
  void ReadSome();
  void EndSome();
  void Disturb(int dice);
  void Kill();
  void TickStore();
  void CheckLookup(const std::vector<int>& keys, int scope_index, int precision, int fidelity,
                   const SimAnswer& answer);
  void Demand(int key);
  void CheckLoads();
  void CountPrefetched();

  const Universe& universe_;
  Rng rng_;
  const SimStoreOptions options_;
  SimDisk disk_;
  Books books_;
  std::unique_ptr<SimStore> store_;
  absl::Duration now_ = absl::Seconds(1000);
  std::array<std::string, kClients> sessions_;
  int64_t next_session_ = 10;
  int64_t step_ = 0;
  std::vector<int64_t> load_began_;  // step of the demand; -1: none
  std::vector<int> reading_;         // loads under way
  int64_t stuck_ticks_ = 0;
  int64_t victims_before_ = 0;
  Tally tally_;
};

// ---- Clients ------------------------------------------------------------------------------------

void Run::PushSome() {
  const int scope_index = rng_.Below(Universe::kScopes);
  // Mostly what a worker does: the first page of a chain that is not there.
  int key = SomeKey(scope_index);
  if (!rng_.Chance(100)) {
    for (const int page : universe_.PathTo(key)) {
      key = page;
      if (!books_.alive(page)) break;
    }
  }
  const int form = FormOf(rng_.Chance(700) ? 0 : 1, 0);
  const int parent = universe_.at(key).parent;
  const bool parent_there = parent == kNoKey || books_.alive(parent);
  const auto pushed = store_->Push(key, form, rng_.Chance(500), now_);
  ++tally_.pushes;
  // Evicting for room may have taken the parent along.
  if (pushed == SimStore::Pushed::kNoParent && parent_there && books_.alive(parent)) {
    books_.Fail(absl::StrFormat("push of page %d refused, its parent %d is there", key, parent));
  }
  const bool stored =
      pushed == SimStore::Pushed::kStored || pushed == SimStore::Pushed::kAlreadyStored;
  if (stored && !books_.alive(key)) books_.Fail("a push was confirmed and is not there");
}

void Run::CheckLookup(const std::vector<int>& keys, int scope_index, int precision, int fidelity,
                      const SimAnswer& answer) {
  size_t expected = 0;
  for (; expected < keys.size(); ++expected) {
    const int key = keys[expected];
    if (!books_.alive(key) || books_.quarantined(key)) break;
    if (universe_.at(key).scope_index != scope_index) break;
    const int form = books_.best_form(key);
    if (PrecisionIndexOf(form) > precision || FidelityIndexOf(form) > fidelity) break;
  }
  if (answer.pages.size() != expected) {
    return books_.Fail(absl::StrFormat("lookup of page %d in scope %d found %d pages, not %d",
                                       keys.back(), scope_index, answer.pages.size(), expected));
  }
  for (size_t i = 0; i < expected; ++i) {
    if (answer.pages[i].key != keys[i] || answer.pages[i].ready != books_.resident(keys[i])) {
      return books_.Fail(absl::StrFormat("lookup: page %d of the answer is wrong", i));
    }
  }
}

void Run::Demand(int key) {
  if (store_->Load(key, now_) && store_->load_waits(key) &&
      load_began_[static_cast<size_t>(key)] < 0) {
    load_began_[static_cast<size_t>(key)] = step_;
    ++tally_.loads;
  }
}

void Run::LookUpSome() {
  const std::string& session = SomeSession();
  const int scope_index = ScopeOf(session);
  // Sometimes with the keys of others: must look as if they were not there.
  const int key = rng_.Chance(80) ? SomeKey(1 - scope_index) : SomeKey(scope_index);
  const std::vector<int> keys = universe_.PathTo(key);
  const int precision = rng_.Chance(600) ? 2 : rng_.Below(3);
  const int fidelity = rng_.Chance(700) ? 1 : 0;
  const bool leased = rng_.Chance(700);
  const std::string request = absl::StrCat("r", rng_.Below(kRequests));
  const SimAnswer answer =
      store_->Lookup(keys, scope_index, precision, fidelity, leased ? session : "", request, now_);
  CheckLookup(keys, scope_index, precision, fidelity, answer);
  tally_.hit_pages += static_cast<int64_t>(answer.pages.size());
  if (!leased) return;
  HeldLease* held = books_.FindLease(session, request);
  if (answer.pages.empty() && held != nullptr) {
    *held = books_.leases.back();
    books_.leases.pop_back();
  }
  if (answer.lease == 0) return;
  if (held == nullptr) {
    books_.leases.emplace_back();
    held = &books_.leases.back();
  }
  ++tally_.leases;
  *held = HeldLease{session, request, answer.lease, scope_index, {}, now_ + options_.lease_ttl};
  for (const FoundPage& page : answer.pages) {
    held->pages.push_back({page.key, books_.life(page.key), nullptr});
    if (!page.ready) Demand(page.key);
  }
}

void Run::ReadSome() {
  if (books_.leases.empty()) return;
  HeldLease& lease = books_.leases[size_t(rng_.Below(static_cast<int>(books_.leases.size())))];
  const bool living = lease.expires > now_;
  if (rng_.Chance(300)) {
    if (store_->Renew(lease.session, lease.id, now_) != living) {
      books_.Fail(absl::StrFormat("lease %d: renewing should have %s", lease.id,
                                  living ? "succeeded" : "failed"));
    }
    if (living) lease.expires = now_ + options_.lease_ttl;
    return;
  }
  HeldPage& held = lease.pages[size_t(rng_.Below(static_cast<int>(lease.pages.size())))];
  const auto page = store_->GetLeased(lease.session, lease.id, held.key, now_);
  const bool there = held.life == books_.life(held.key) && !books_.quarantined(held.key);
  if (!living) {
    if (page.ok()) books_.Fail("a page was read under a lease that had ended");
    return;
  }
  if (!page.ok()) {
    if (there) books_.Fail(absl::StrFormat("leased page %d is gone", held.key));
    return;
  }
  if (*page == nullptr) {
    if (held.page != nullptr || books_.resident(held.key)) {
      books_.Fail(absl::StrFormat("leased page %d is in memory and was not given", held.key));
    }
    return Demand(held.key);
  }
  if (held.page == nullptr) held.page = *page;
  const int form = universe_.FormOfPage(held.key, *page);
  if (*page != held.page || form == kNoForm || !books_.ever_stored(held.key, form) ||
      (*page)->header().scope != universe_.scope(lease.scope_index)) {
    books_.Fail(absl::StrFormat("leased page %d has other bytes than before", held.key));
  }
}

void Run::EndSome() {
  const int which = rng_.Below(kClients);
  const std::string session = sessions_[static_cast<size_t>(which)];
  if (rng_.Chance(100)) {  // It dies: nobody renews its leases, they end by themselves.
    ++tally_.dead_clients;
    return NewClient(which);
  }
  const auto of_session = [&](const HeldLease& lease) { return lease.session == session; };
  auto& leases = books_.leases;
  if (rng_.Chance(100)) {
    store_->ReleaseSession(session);
    store_->CancelHints(static_cast<uint64_t>(which) + 1);
    leases.erase(std::remove_if(leases.begin(), leases.end(), of_session), leases.end());
    return NewClient(which);
  }
  const auto lease = std::find_if(leases.begin(), leases.end(), of_session);
  if (lease == leases.end()) return;
  store_->Release(session, lease->id);
  leases.erase(lease);
}

void Run::ClientStep(int dice) {
  if (dice < 330) return LookUpSome();
  if (dice < 560) return PushSome();
  if (dice < 700) return ReadSome();
  if (dice < 760) return EndSome();
  if (dice < 800) return store_->ReportAttention(AnyKey(), rng_.Below(1000) / 1000.0);
  const std::string& session = SomeSession();
  const auto owner = static_cast<uint64_t>(&session - sessions_.data()) + 1;
  const int scope_index = ScopeOf(session);
  store_->Hint(universe_.PathTo(SomeKey(rng_.Chance(100) ? 1 - scope_index : scope_index)),
               scope_index, owner, now_ + absl::Milliseconds(rng_.Below(3000)), now_);
}

// ---- The store's own work -----------------------------------------------------------------------

void Run::TickStore() {
  store_->Tick(now_);
  books_.ForgetExpired();
  if (store_->leases().lease_count() != static_cast<int64_t>(books_.leases.size())) {
    books_.Fail("a lease outlived its term, or ended before it");
  }
  bool evictable = false;
  if (store_->excess_bytes() > 0 && !disk_.sick && books_.victim_count() == victims_before_) {
    const Directory& directory = store_->directory();
    for (int key = 0; key < universe_.key_count() && !evictable; ++key) {
      const EntryId id = books_.resident(key) ? store_->Find(key) : kNoEntry;
      evictable = id != kNoEntry && !directory.at(id).locked() && store_->MayLeaveHost(id) &&
                  directory.host_policy().child_count(id) == 0;
    }
  }
  stuck_ticks_ = evictable ? stuck_ticks_ + 1 : 0;
  victims_before_ = books_.victim_count();
  if (stuck_ticks_ > kStuckTicksMax) books_.Fail("demotion is stuck: there are victims, none goes");
}

void Run::DiskStep() {
  const int chance = disk_.slow ? 30 : 300;
  if (!store_->write_under_way()) {
    store_->StartWrite(now_);
  } else if (rng_.Chance(chance)) {
    const bool ok = !disk_.sick && !rng_.Chance(10);
    store_->EndWrite(ok, now_);
    ++(ok ? tally_.writes : tally_.failed_writes);
  }
  if (const int key = store_->StartLoad(); key != kNoKey) reading_.push_back(key);
  for (size_t i = 0; i < reading_.size();) {
    if (!rng_.Chance(chance)) {
      ++i;
      continue;
    }
    const int key = reading_[i];
    reading_[i] = reading_.back();
    reading_.pop_back();
    const auto read = disk_.sick       ? SimStore::Read::kFailed
                      : rng_.Chance(4) ? SimStore::Read::kBroken
                                       : SimStore::Read::kOk;
    store_->EndLoad(key, read, now_);
    if (!store_->load_waits(key)) load_began_[static_cast<size_t>(key)] = -1;
  }
}

void Run::CheckLoads() {
  for (int key = 0; key < universe_.key_count(); ++key) {
    const int64_t began = load_began_[static_cast<size_t>(key)];
    if (began >= 0 && step_ - began > kLoadStepsMax) {
      books_.Fail(absl::StrFormat("the load of page %d is not answered after %d steps", key,
                                  step_ - began));
    }
  }
}

void Run::Kill() {
  ++tally_.kills;
  CountPrefetched();
  disk_.Kill();
  disk_.sick = disk_.slow = false;
  books_.OnRestart();
  std::fill(load_began_.begin(), load_began_.end(), -1);
  reading_.clear();
  for (int i = 0; i < kClients; ++i) NewClient(i);
  Start();
}

void Run::Disturb(int dice) {
  if (dice < 50) return Kill();
  if (dice < 200) {
    disk_.sick = !disk_.sick && dice < 90;  // it heals sooner than it falls ill
  } else if (dice < 350) {
    disk_.slow = !disk_.slow;
  } else if (dice < 370) {
    SetSomePolicy(rng_.Chance(500) ? Tier::kHost : Tier::kSsd);
  } else if (dice < 450) {
    store_->Remove(AnyKey(), now_);
  } else if (dice < 550) {
    const int key = AnyKey();
    if (!books_.alive(key)) return;
    books_.SetQuarantined(key);  // first: the page may die of it
    store_->Quarantine(key, now_);
  } else {
    const int key = AnyKey();
    if (!books_.alive(key)) return;
    const bool pin = rng_.Chance(400);
    store_->Pin(key, pin);
    pin ? books_.SetPinned(key) : books_.ClearPinned(key);
  }
}

void Run::StoreStep(int dice) {
  if (dice < 400) return TickStore();
  if (dice < 600) return store_->Prefetch(now_);
  if (dice < 900) {
    store_->Encode(AnyKey());
    return;
  }
  if (dice < 980) return disk_.Flush();
  Disturb(rng_.Below(1000));
}

void Run::Step() {
  now_ += absl::Milliseconds(rng_.Below(40));
  books_.now = now_;
  DiskStep();
  rng_.Chance(700) ? ClientStep(rng_.Below(1000)) : StoreStep(rng_.Below(1000));
  const auto limit =
      static_cast<int64_t>(options_.marks.hard * static_cast<double>(options_.host_bytes));
  // An encoding may be larger than what it replaces, and is placed all the same, as in a daemon.
  if (books_.host_bytes() > limit + universe_.at(0).bytes(0)) {
    books_.Fail(absl::StrFormat("%d bytes in host memory, the hard mark is %d", books_.host_bytes(),
                                limit));
  }
}

void Run::CountPrefetched() {
  for (const prefetch::SourceCounters& source : store_->scheduler().counters().by_source) {
    tally_.prefetched += source.loaded;
  }
}

std::string Run::Steps(int64_t count, Tally& tally) {
  for (step_ = 1; step_ <= count && books_.wrong().empty(); ++step_) {
    Step();
    if (step_ % kCompareEvery != 0) continue;
    TickStore();  // so that leases that have ended are gone in both
    CheckLoads();
    books_.Compare(*store_, disk_);
  }
  CountPrefetched();
  tally_.steps = step_ - 1;
  tally_.victims = books_.victim_count();
  tally.Add(tally_);
  if (books_.wrong().empty()) return "";
  return absl::StrCat("step ", step_ - 1, ": ", books_.wrong());
}

}  // namespace

void Tally::Add(const Tally& other) {
  steps += other.steps;
  pushes += other.pushes;
  hit_pages += other.hit_pages;
  victims += other.victims;
  loads += other.loads;
  writes += other.writes;
  failed_writes += other.failed_writes;
  kills += other.kills;
  dead_clients += other.dead_clients;
  leases += other.leases;
  prefetched += other.prefetched;
}

std::string Tally::ToString() const {
  return absl::StrFormat(
      "%d steps: %d pushes, %d hit pages, %d leases, %d dead clients, %d victims, %d writes "
      "(%d failed), %d loads, %d prefetched pages, %d kills",
      steps, pushes, hit_pages, leases, dead_clients, victims, writes, failed_writes, loads,
      prefetched, kills);
}

std::string RunSeed(const Universe& universe, uint64_t seed, int64_t step_count, Tally& tally) {
  return Run(universe, seed).Steps(step_count, tally);
}

}  // namespace pagoda::simulation
