// Goal: pages that come up together are there layer by layer, each with exactly its bytes before it
// is told of, and end like any other load: whole, or not at all. Method: a real folder, one thread
// for an order that is known, several for one that is not; damage, drops, full queues, shutdown.
#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "storage/testing/raw_ssd.h"
#include "storage/testing/store_fixture.h"

namespace pagoda {
namespace {

using absl::StatusCode;

class Listener : public TieredStore::LayerListener {
 public:
  explicit Listener(std::vector<TestPage> pages) : pages_(std::move(pages)) {}

  void OnBegun(size_t index, const HostPagePtr& page) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(page->header().record.key, pages_[index].record().key);
    EXPECT_FALSE(done_.contains(index));
    begun_[index] = page;
  }
  void OnSegment(size_t index, uint32_t segment) override {
    {
      absl::MutexLock lock(&mutex_);
      ASSERT_TRUE(begun_.contains(index));
      EXPECT_FALSE(done_.contains(index));
      const HostPagePtr& page = begun_[index];
      EXPECT_EQ(std::string(AsText(page->segment(segment))),
                SegmentBytes(pages_[index], page->header(), segment));
      layers_.push_back(page->header().segments[segment].layer_begin);
      ++segments_[index];
    }
    if (on_segment != nullptr) on_segment(index, segment);
  }
  void OnDone(size_t index, absl::StatusOr<HostPagePtr> page) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(done_.emplace(index, std::move(page)).second);
  }
  bool WaitAll() {
    absl::MutexLock lock(&mutex_);
    const auto all = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return done_.size() == pages_.size();
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(30));
  }
  std::map<size_t, absl::StatusOr<HostPagePtr>> done() const {
    absl::MutexLock lock(&mutex_);
    return done_;
  }
  std::vector<uint32_t> layers() const {
    absl::MutexLock lock(&mutex_);
    return layers_;
  }
  std::map<size_t, int> segments() const {
    absl::MutexLock lock(&mutex_);
    return segments_;
  }
  void Forget() {
    absl::MutexLock lock(&mutex_);
    begun_.clear();
    done_.clear();
  }

  std::function<void(size_t, uint32_t)> on_segment;  // set before the load

 private:
  const std::vector<TestPage> pages_;
  mutable absl::Mutex mutex_;
  std::map<size_t, HostPagePtr> begun_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, absl::StatusOr<HostPagePtr>> done_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> layers_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, int> segments_ ABSL_GUARDED_BY(mutex_);
};

class TieredStoreLayersTest : public StoreTest {
 protected:
  void OpenWith(const std::vector<TestPage>& pages) {
    Open();
    for (const TestPage& page : pages) PAGODA_ASSERT_OK(Push(page));
    PersistAll(pages);
    DropFromHost();
  }
  std::shared_ptr<Listener> LoadAll(const std::vector<TestPage>& pages,
                                    std::function<void(size_t, uint32_t)> on_segment = nullptr) {
    const LookupAnswer found =
        Lookup(pages, Precision::kNone, Precision::kNone, {"session", "request", absl::Minutes(1)});
    EXPECT_NE(found.lease, 0u);
    auto listener = std::make_shared<Listener>(pages);
    listener->on_segment = std::move(on_segment);
    std::vector<TieredStore::LayerPage> wanted;
    for (size_t i = 0; i < pages.size(); ++i) wanted.push_back({i, pages[i].record()});
    store_->LoadLeasedByLayer("session", found.lease, wanted, listener);
    return listener;
  }
};

TEST_F(TieredStoreLayersTest, LayersComeInTheirOrderOverAllPages) {
  options_.loader_threads = 1;
  const std::vector<TestPage> chain = TestChain(5);
  OpenWith(chain);
  const auto listener = LoadAll(chain);
  ASSERT_TRUE(listener->WaitAll());
  const std::vector<uint32_t> layers = listener->layers();
  EXPECT_TRUE(std::is_sorted(layers.begin(), layers.end()));
  for (const auto& [index, page] : listener->done()) {
    PAGODA_ASSERT_OK(page);
    EXPECT_TRUE(IsExactly(**page, chain[index]));
    EXPECT_EQ(Get(chain[index]), *page);
    EXPECT_EQ(listener->segments()[index], static_cast<int>((*page)->segment_count()));
  }
  EXPECT_EQ(store_->Stats().counters.loads_started, 5);
  listener->Forget();
  ExpectExact();
}

TEST_F(TieredStoreLayersTest, ManyThreadsShareAGroup) {
  options_.loader_threads = 4;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    const std::vector<TestPage> chain = TestChain(12, seed);
    OpenWith(chain);
    const auto listener = LoadAll(chain);
    ASSERT_TRUE(listener->WaitAll());
    for (const auto& [index, page] : listener->done()) {
      PAGODA_ASSERT_OK(page);
      EXPECT_TRUE(IsExactly(**page, chain[index]));
    }
    listener->Forget();
    ExpectExact();
  }
}

TEST_F(TieredStoreLayersTest, ADamagedSegmentEndsItsPageAlone) {
  const std::vector<TestPage> chain = TestChain(3);
  OpenWith(chain);
  store_ = nullptr;
  { RawSsd(options_.ssd.path).FlipBit(chain[1].record(), 1, 56); }
  Open();
  const auto listener = LoadAll(chain);
  ASSERT_TRUE(listener->WaitAll());
  const auto done = listener->done();
  PAGODA_EXPECT_OK(done.at(0));
  EXPECT_THAT(done.at(1), StatusIs(StatusCode::kDataLoss));
  EXPECT_EQ(Get(chain[1]), nullptr);
  EXPECT_EQ(Lookup(chain).pages.size(), 1u);  // as after any load that finds damage
  listener->Forget();
  EXPECT_EQ(*Push(chain[1]), CommitOutcome::kStored);
  ExpectExact();
}

TEST_F(TieredStoreLayersTest, APageThatIsDroppedMeanwhileIsNone) {
  options_.loader_threads = 1;
  const std::vector<TestPage> chain = TestChain(2);
  OpenWith(chain);
  bool dropped = false;
  const auto listener = LoadAll(chain, [&](size_t, uint32_t) {
    if (dropped) return;
    dropped = true;
    PageFilter filter;
    filter.identity = HeaderOf(chain[0]).identity;
    store_->Evict(filter);
  });
  ASSERT_TRUE(listener->WaitAll());
  for (const auto& [index, page] : listener->done()) {
    EXPECT_THAT(page, StatusIs(StatusCode::kNotFound)) << index;
  }
  listener->Forget();
  ExpectExact();
}

TEST_F(TieredStoreLayersTest, OthersJoinAndWhatIsThereIsAnsweredAtOnce) {
  options_.loader_threads = 1;
  const std::vector<TestPage> chain = TestChain(3);
  OpenWith(chain);
  PAGODA_ASSERT_OK(Load(chain[0]));
  std::atomic<int> joined{0};
  bool asked = false;
  const auto listener = LoadAll(chain, [&](size_t, uint32_t) {
    if (asked) return;
    asked = true;
    store_->LoadAsync(chain[2].record(), chain[2].scope(), [&](absl::StatusOr<HostPagePtr> page) {
      if (page.ok() && IsExactly(**page, chain[2])) ++joined;
    });
  });
  ASSERT_TRUE(listener->WaitAll());
  EXPECT_TRUE(Eventually([&] { return joined == 1; }));
  EXPECT_EQ(listener->segments().count(0), 0u);
  for (const auto& [index, page] : listener->done()) PAGODA_EXPECT_OK(page);
  EXPECT_EQ(store_->Stats().counters.loads_joined, 1);
}

// Who was told that a page is late hears nothing more of it.
TEST_F(TieredStoreLayersTest, LatePagesAreAnsweredOnceAndSilent) {
  options_.loader_threads = 1;
  const std::vector<TestPage> chain = TestChain(6);
  OpenWith(chain);
  std::atomic<bool> late{false};
  const auto listener = LoadAll(chain, [&](size_t, uint32_t) {
    if (late.exchange(true)) return;
    clock_.Advance(2 * options_.load_timeout);  // a read that took that long
    absl::SleepFor(absl::Milliseconds(100));
  });
  ASSERT_TRUE(listener->WaitAll());
  EXPECT_TRUE(Eventually([&] { return store_->Stats().counters.loads_late > 0; }));
  // They come up all the same, for who asks next.
  for (const TestPage& page : chain) {
    EXPECT_TRUE(Eventually([&] { return Get(page) != nullptr; }));
  }
  listener->Forget();
  ExpectExact();
}

TEST_F(TieredStoreLayersTest, FullQueuesAndShutdownAnswerEveryPage) {
  options_.loader_threads = 1;
  options_.load_queue_max = 1;
  const std::vector<TestPage> chain = TestChain(4);
  OpenWith(chain);
  absl::Notification blocked;
  absl::Notification release;
  store_->LoadAsync(chain[0].record(), chain[0].scope(), [&](absl::StatusOr<HostPagePtr>) {
    blocked.Notify();
    release.WaitForNotification();
  });
  blocked.WaitForNotification();
  std::atomic<bool> queued{false};
  store_->LoadAsync(chain[1].record(), chain[1].scope(),
                    [&](absl::StatusOr<HostPagePtr>) { queued = true; });
  const auto refused = LoadAll({chain[0], chain[1], chain[2], chain[3]});
  const auto first = refused->done();
  EXPECT_THAT(first.at(2), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(first.at(3), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_EQ(store_->Stats().counters.load_queue_refusals, 2);
  release.Notify();
  EXPECT_TRUE(refused->WaitAll());
  EXPECT_TRUE(Eventually([&] { return queued.load(); }));
  refused->Forget();

  // A group that never runs.
  DropFromHost();
  absl::Notification blocked_again;
  absl::Notification release_again;
  store_->LoadAsync(chain[0].record(), chain[0].scope(), [&](absl::StatusOr<HostPagePtr>) {
    blocked_again.Notify();
    release_again.WaitForNotification();
  });
  blocked_again.WaitForNotification();
  const auto pending = LoadAll({chain[0], chain[1], chain[2]});
  std::thread closing([&] { (void)store_->Shutdown(absl::Seconds(10)); });
  absl::SleepFor(absl::Milliseconds(20));
  release_again.Notify();
  closing.join();
  store_ = nullptr;
  EXPECT_TRUE(pending->WaitAll());
}

}  // namespace
}  // namespace pagoda
