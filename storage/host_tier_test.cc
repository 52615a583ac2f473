// Goal: no byte is lost, counted twice or shown to another scope. Method: cases at each limit, and
// seeded random runs against a plain list of what is held.
#include "storage/host_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

ScopeId Named(const std::string& name) { return ScopeIdOf({ScopeKind::kPrivate, name}); }

std::shared_ptr<HostTier> MakeTier(int64_t capacity_bytes) {
  HostTierOptions options;
  options.capacity_bytes = capacity_bytes;
  return *HostTier::Create(options);
}

TEST(HostTierTest, ChunkSizeFollowsTheBudget) {
  const auto chunk = [](int64_t capacity) {
    HostTierOptions options;
    options.capacity_bytes = capacity;
    return options.chunk_bytes();
  };
  EXPECT_EQ(chunk(kMiB), kMiB);
  EXPECT_EQ(chunk(31 * kMiB), kMiB);
  EXPECT_EQ(chunk(32 * kMiB), 2 * kMiB);
  EXPECT_EQ(chunk(1024 * kMiB), 64 * kMiB);
  EXPECT_EQ(chunk(65536 * kMiB), 64 * kMiB);
}

TEST(HostTierTest, RefusesBadOptions) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  HostTierOptions options;
  options.capacity_bytes = kMiB - 1;
  EXPECT_THAT(options.Validate(), StatusIs(kInvalid, "capacity_bytes"));
  EXPECT_THAT(HostTier::Create(options), StatusIs(kInvalid));
  options.capacity_bytes = kMiB;
  PAGODA_EXPECT_OK(options.Validate());
  for (const int64_t bad : {kMiB / 2, 3 * kMiB, 2048 * kMiB}) {
    options.chunk_bytes_max = bad;
    EXPECT_THAT(options.Validate(), StatusIs(kInvalid, "chunk_bytes_max")) << bad;
  }
}

TEST(HostTierTest, PagesAreMadeAtTheStartWhenAsked) {
  for (const int threads : {0, 3}) {
    HostTierOptions options;
    options.capacity_bytes = 4 * kMiB;
    options.touch_threads = threads;
    options.huge_pages = threads > 0;
    const auto tier = *HostTier::Create(options);
    const Slab slab = *tier->Allocate(Named("a"), kMiB);
    std::vector<unsigned char> resident(kMiB / 4096);
    ASSERT_EQ(mincore(slab.bytes().data(), kMiB, resident.data()), 0);
    for (const unsigned char page : resident) ASSERT_EQ(page & 1, threads > 0 ? 1 : 0);
    EXPECT_EQ(slab.bytes()[kMiB - 1], std::byte{0});
  }
  HostTierOptions options;
  options.touch_threads = -1;
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, "touch_threads"));
}

TEST(HostTierTest, ToldBeforeAChunkGoes) {
  std::vector<const std::byte*> gone;
  auto tier = MakeTier(2 * kMiB);
  tier->OnUnmap([&](const std::byte* chunk) { gone.push_back(chunk); });
  std::vector<std::shared_ptr<const Slab>> slabs;
  slabs.push_back(std::make_shared<const Slab>(*tier->Allocate(Named("a"), 8192)));
  slabs.push_back(std::make_shared<const Slab>(*tier->Allocate(Named("b"), 8192)));
  std::vector<MutableByteSpan> chunks;
  tier->ChunksOf(slabs, chunks);
  ASSERT_EQ(chunks.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_LE(chunks[i].data(), slabs[i]->bytes().data());
    EXPECT_GE(chunks[i].data() + chunks[i].size(), slabs[i]->bytes().data() + 8192);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(chunks[i].data()) % 4096, 0u);
    EXPECT_EQ(chunks[i].size() % 4096, 0u);
  }
  slabs.erase(slabs.begin());
  slabs.push_back(std::make_shared<const Slab>(*tier->Allocate(Named("c"), 8192)));
  EXPECT_EQ(gone, std::vector<const std::byte*>{chunks[0].data()});  // replaced for another scope
  slabs.clear();
  tier.reset();
  EXPECT_EQ(gone.size(), 3u);
}

TEST(HostTierTest, SizesAreRoundedToPagesAndBoundedByAChunk) {
  const auto tier = MakeTier(16 * kMiB);
  const ScopeId scope = Named("a");
  EXPECT_EQ(tier->Allocate(scope, 1)->size(), 4096);
  EXPECT_EQ(tier->Allocate(scope, 4096)->size(), 4096);
  EXPECT_EQ(tier->Allocate(scope, 4097)->size(), 8192);
  EXPECT_EQ(tier->Allocate(scope, kMiB)->size(), kMiB);
  EXPECT_THAT(tier->Allocate(scope, kMiB + 1),
              StatusIs(absl::StatusCode::kInvalidArgument, "one chunk"));
  EXPECT_THAT(tier->Allocate(scope, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(tier->usage().used_bytes, 0);
  EXPECT_EQ(tier->usage().reserved_bytes, 0);
}

TEST(HostTierTest, ExhaustionStatesAskedAndFree) {
  const auto tier = MakeTier(2 * kMiB);
  const auto first = tier->Allocate(Named("a"), kMiB);
  const auto second = tier->Allocate(Named("a"), 4096);
  PAGODA_ASSERT_OK(second);
  const auto third = tier->Allocate(Named("a"), 8192);
  EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted,
                              "asked 8192 bytes; 1044480 of 2097152 free, 0 of it"));
  // All or none: the small one of the two that fits is given back.
  EXPECT_THAT(tier->AllocateAll(Named("a"), {4096, 8192}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(tier->usage().used_bytes, kMiB + 4096);
  PAGODA_EXPECT_OK(tier->AllocateAll(Named("a"), {4096, 4096}));
}

TEST(HostTierTest, AnotherScopeGetsFreshMemoryAndOldMapsSurvive) {
  const auto tier = MakeTier(kMiB);  // one chunk
  Slab slab = *tier->Allocate(Named("a"), 4096);
  std::memset(slab.bytes().data(), 'a', 4096);
  const SlabLocation location = tier->Locate(slab);
  absl::StatusOr<SharedChunk> shared = tier->Share(location.memfd_id);
  PAGODA_ASSERT_OK(shared);
  void* map = mmap(nullptr, shared->memfd_bytes, PROT_READ, MAP_SHARED, shared->fd.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  const auto generation = [&] {
    return *reinterpret_cast<const uint64_t*>(
        static_cast<const char*>(map) + GenerationOffset(shared->chunk_bytes, location.offset));
  };
  EXPECT_EQ(generation(), location.generation);
  EXPECT_THAT(tier->Allocate(Named("b"), 4096), StatusIs(absl::StatusCode::kResourceExhausted));
  slab.Reset();
  EXPECT_EQ(generation(), location.generation + 1);  // before anybody writes there again
  // The same scope gets the chunk back as it is.
  EXPECT_EQ(tier->Locate(*tier->Allocate(Named("a"), 8192)).memfd_id, location.memfd_id);
  slab = *tier->Allocate(Named("b"), 4096);
  EXPECT_NE(tier->Locate(slab).memfd_id, location.memfd_id);
  EXPECT_THAT(tier->Share(location.memfd_id), StatusIs(absl::StatusCode::kNotFound));
  for (const std::byte byte : slab.bytes()) ASSERT_EQ(byte, std::byte{0});
  std::memset(slab.bytes().data(), 'b', 4096);
  EXPECT_EQ(static_cast<const char*>(map)[location.offset], 'a');
  munmap(map, shared->memfd_bytes);
}

TEST(HostTierTest, ADescriptorGivenAwayCannotBeMappedForWriting) {
  const auto tier = MakeTier(kMiB);
  const Slab slab = *tier->Allocate(Named("a"), 4096);
  const SharedChunk shared = *tier->Share(tier->Locate(slab).memfd_id);
  const int fd = shared.fd.get();
  const auto size = static_cast<size_t>(shared.memfd_bytes);
  EXPECT_EQ(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(fd, 4096), 0);
  EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_LT(write(fd, "x", 1), 0);
  EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  // A map for reading stays one, and another descriptor of the same file is no way in.
  void* map = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_NE(mprotect(map, size, PROT_READ | PROT_WRITE), 0);
  munmap(map, size);
  const std::string self = "/proc/self/fd/" + std::to_string(fd);
  const UniqueFd again(open(self.c_str(), O_RDWR | O_CLOEXEC));
  if (again.valid()) {
    EXPECT_EQ(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
    EXPECT_LT(write(again.get(), "x", 1), 0);
  }
}

// One chunk's worth of slabs of a quarter of a chunk, `count` times.
std::vector<std::shared_ptr<const Slab>> Quarters(HostTier& tier, int count) {
  std::vector<std::shared_ptr<const Slab>> slabs;
  for (int i = 0; i < count; ++i) {
    slabs.push_back(std::make_shared<const Slab>(*tier.Allocate(Named("a"), kMiB / 4)));
    tier.SetUse({&slabs.back(), 1}, SlabUse::kResident, static_cast<SlabOwner>(i + 1));
  }
  return slabs;
}

TEST(HostTierTest, EverySlabIsOfOneUse) {
  const auto tier = MakeTier(4 * kMiB);
  auto slabs = Quarters(*tier, 3);
  const Slab staged = *tier->Allocate(Named("b"), 4096);
  tier->SetUse({&slabs[1], 1}, SlabUse::kLingering, 0);
  EXPECT_EQ(tier->usage().bytes_of(SlabUse::kStaged), 4096);
  EXPECT_EQ(tier->usage().bytes_of(SlabUse::kResident), kMiB / 2);
  EXPECT_EQ(tier->usage().bytes_of(SlabUse::kLingering), kMiB / 4);
  EXPECT_EQ(tier->scope_usage(Named("a")).bytes_of(SlabUse::kStaged), 0);
  PAGODA_EXPECT_OK(tier->CheckAccounting());
  slabs.clear();
  EXPECT_EQ(tier->usage().bytes_of(SlabUse::kResident), 0);
  EXPECT_EQ(tier->usage().bytes_of(SlabUse::kLingering), 0);
  PAGODA_EXPECT_OK(tier->CheckAccounting());
}

TEST(HostTierTest, ADrainedChunkHandsOutNothingAndComesBackEmpty) {
  const auto tier = MakeTier(4 * kMiB);
  auto slabs = Quarters(*tier, 8);
  EXPECT_EQ(tier->BeginDrain(), std::nullopt);  // no holes
  slabs.erase(slabs.begin(), slabs.begin() + 2);
  slabs.erase(slabs.begin() + 2, slabs.begin() + 4);  // owners 3, 4, 7, 8 are left, two a chunk
  const auto drain = tier->BeginDrain();
  ASSERT_TRUE(drain.has_value());
  EXPECT_EQ(drain->chunk, 1u);
  EXPECT_EQ(drain->owners, std::vector<SlabOwner>({7, 8}));
  EXPECT_FALSE(tier->BeginDrain().has_value());  // one at a time
  const auto holes = tier->AllocateAll(Named("a"), {kMiB / 4, kMiB / 4}, SlabRoom::kHolesOnly);
  PAGODA_ASSERT_OK(holes);
  for (const Slab& slab : *holes) EXPECT_EQ(slab.chunk(), 0u);
  EXPECT_THAT(tier->AllocateAll(Named("a"), {kMiB / 4}, SlabRoom::kHolesOnly),
              StatusIs(absl::StatusCode::kResourceExhausted));
  slabs.resize(2);
  EXPECT_EQ(tier->usage().reserved_bytes, kMiB);
  EXPECT_EQ(tier->drained_chunk_count(), 1);
  tier->EndDrain();
  PAGODA_EXPECT_OK(tier->CheckAccounting());
}

TEST(HostTierTest, AChunkThatCannotBeEmptiedIsNotPickedAgainAtOnce) {
  const auto tier = MakeTier(4 * kMiB);
  auto slabs = Quarters(*tier, 8);
  slabs.erase(slabs.begin());
  slabs.erase(slabs.begin() + 3, slabs.begin() + 6);  // owners 2, 3, 4 and 8
  EXPECT_EQ(tier->BeginDrain()->chunk, 1u);
  tier->EndDrain();
  EXPECT_EQ(tier->BeginDrain()->chunk, 0u);
  tier->EndDrain();
  EXPECT_FALSE(tier->BeginDrain().has_value());  // both are stuck; from now all may be tried again
  EXPECT_EQ(tier->BeginDrain()->chunk, 1u);
  tier->EndDrain();
  EXPECT_EQ(tier->BeginDrain()->chunk, 0u);
  tier->EndDrain();
  EXPECT_FALSE(tier->BeginDrain().has_value());
  // What is staged or lingers cannot be moved.
  tier->SetUse({&slabs.back(), 1}, SlabUse::kLingering, 0);
  EXPECT_EQ(tier->BeginDrain()->chunk, 0u);
}

TEST(HostTierTest, AnAllocationIsNotRefusedForADrain) {
  const auto tier = MakeTier(2 * kMiB);  // two chunks
  auto slabs = Quarters(*tier, 5);
  slabs.erase(slabs.begin());  // a hole in chunk 0, three in chunk 1
  ASSERT_EQ(tier->BeginDrain()->chunk, 1u);
  PAGODA_EXPECT_OK(tier->AllocateAll(Named("a"), {kMiB / 4, kMiB / 4, kMiB / 4, kMiB / 4}));
}

TEST(HostTierTest, RandomRunsCountExactly) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    std::mt19937 rng(seed);
    const auto tier = MakeTier(8 * kMiB);
    std::vector<std::pair<std::string, Slab>> held;
    for (int step = 0; step < 4000; ++step) {
      if (rng() % 100 < 55) {
        const std::string scope(1, static_cast<char>('a' + rng() % 3));
        const int64_t sizes[] = {4096, 12288, 65536, 300000};
        auto slab = tier->Allocate(Named(scope), sizes[rng() % 4]);
        if (slab.ok()) held.emplace_back(scope, *std::move(slab));
      } else if (!held.empty()) {
        std::swap(held[rng() % held.size()], held.back());
        held.pop_back();
      }
      if (step % 50 != 0) continue;
      std::map<std::string, int64_t> by_scope;
      std::map<std::string, std::set<uint64_t>> memfds;
      std::set<const std::byte*> starts;
      int64_t used = 0;
      for (const auto& [scope, slab] : held) {
        used += slab.size();
        by_scope[scope] += slab.size();
        memfds[scope].insert(tier->Locate(slab).memfd_id);
        ASSERT_TRUE(starts.insert(slab.bytes().data()).second);
      }
      ASSERT_EQ(tier->usage().used_bytes, used) << "seed " << seed << " step " << step;
      ASSERT_EQ(tier->usage().slab_count, static_cast<int64_t>(held.size()));
      int64_t reserved = 0;
      for (const auto& [scope, bytes] : by_scope) {
        ASSERT_EQ(tier->scope_usage(Named(scope)).used_bytes, bytes);
        ASSERT_EQ(tier->scope_usage(Named(scope)).reserved_bytes,
                  static_cast<int64_t>(memfds[scope].size()) * kMiB);
        reserved += static_cast<int64_t>(memfds[scope].size()) * kMiB;
        for (const auto& [other, ids] : memfds) {
          for (const uint64_t id : ids) ASSERT_TRUE(other == scope || !memfds[scope].contains(id));
        }
      }
      ASSERT_EQ(tier->usage().reserved_bytes, reserved);
    }
    held.clear();
    EXPECT_EQ(tier->usage().used_bytes, 0);
    EXPECT_EQ(tier->usage().reserved_bytes, 0);
    // Nothing is lost for good: the whole budget can be had again.
    for (int i = 0; i < 8; ++i) held.emplace_back("z", *tier->Allocate(Named("z"), kMiB));
  }
}

// No descriptor can be opened while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest = dup(0);
    close(lowest);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(lowest);
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(HostTierTest, WithoutDescriptorsItSaysSoAndLeavesNothing) {
  const int lowest = dup(0);
  close(lowest);
  {
    const NoDescriptors none;
    HostTierOptions options;
    options.capacity_bytes = 4 * kMiB;
    const auto tier = HostTier::Create(options);
    EXPECT_FALSE(tier.ok());
    EXPECT_NE(std::string(tier.status().message()).find("memfd_create"), std::string::npos);
    EXPECT_NE(std::string(tier.status().message()).find("Too many open files"), std::string::npos);
  }
  const int again = dup(0);
  close(again);
  EXPECT_EQ(again, lowest);
}

TEST(HostTierTest, AChunkThatCannotBeReplacedIsNotLost) {
  const auto tier = MakeTier(kMiB);  // one chunk
  { const auto slab = tier->Allocate(Named("a"), 4096); }
  {
    const NoDescriptors none;
    EXPECT_FALSE(tier->Allocate(Named("b"), 4096).ok());
    PAGODA_EXPECT_OK(tier->Allocate(Named("a"), 4096));  // needs no new memfd
  }
  const auto slab = tier->Allocate(Named("b"), 4096);
  PAGODA_ASSERT_OK(slab);
  EXPECT_EQ(tier->usage().used_bytes, 4096);
}

}  // namespace
}  // namespace pagoda
