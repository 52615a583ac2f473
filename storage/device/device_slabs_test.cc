// Goal: a slab is nobody else's before its fences are passed, and a chunk that others map changes
// its scope only after them. Method: each step by hand, then seeded runs against a plain list of
// what is held.
#include "storage/device/device_slabs.h"

#include <gtest/gtest.h>

#include <random>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr int64_t kChunkBytes = 64 << 10;
const ScopeId kA = ScopeIdOf({ScopeKind::kPrivate, "a"});
const ScopeId kB = ScopeIdOf({ScopeKind::kPrivate, "b"});

std::optional<SlabPlace> Take(DeviceSlabs& slabs, const ScopeId& scope, int64_t bytes,
                              DeviceSlabs::TakenChunk* taken = nullptr) {
  if (auto place = slabs.TakeSlab(scope, bytes)) return place;
  const auto chunk = slabs.TakeChunk(scope, bytes);
  if (!chunk.has_value()) return std::nullopt;
  if (taken != nullptr) *taken = *chunk;
  slabs.OpenChunk(chunk->chunk);
  return slabs.TakeSlab(scope, bytes);
}

void Free(DeviceSlabs& slabs, const SlabPlace& place, const std::vector<Fence>& fences,
          std::vector<SlabPlace>& freed) {
  for (const Fence& fence : fences) slabs.Keep(place, fence);
  slabs.Free(place, freed);
}

TEST(DeviceSlabsTest, WaitsForEveryFence) {
  DeviceSlabs slabs(1, kChunkBytes);
  const TimelineId stream = slabs.AddTimeline();
  const TimelineId worker = slabs.AddTimeline();
  std::vector<SlabPlace> freed;
  const SlabPlace place = *Take(slabs, kA, kChunkBytes);
  EXPECT_TRUE(slabs.IsTaken(place));
  Free(slabs, place, {{stream, 3}, {worker, 1}}, freed);
  EXPECT_FALSE(slabs.IsTaken(place));
  EXPECT_FALSE(Take(slabs, kA, kChunkBytes).has_value());
  slabs.Advance(worker, 7, freed);
  slabs.Advance(stream, 2, freed);
  EXPECT_TRUE(freed.empty());
  EXPECT_EQ(slabs.usage().limbo_bytes, kChunkBytes);
  slabs.Advance(stream, 3, freed);
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(slabs.usage().reserved_bytes, 0);
  EXPECT_GT(Take(slabs, kA, kChunkBytes)->generation, place.generation);
  PAGODA_EXPECT_OK(slabs.CheckAccounting());
}

TEST(DeviceSlabsTest, APassedFenceAndAnEndedTimelineHoldNothing) {
  DeviceSlabs slabs(1, kChunkBytes);
  const TimelineId stream = slabs.AddTimeline();
  const TimelineId worker = slabs.AddTimeline();
  std::vector<SlabPlace> freed;
  slabs.Advance(stream, 5, freed);
  slabs.Advance(stream, 4, freed);  // never back
  Free(slabs, *Take(slabs, kA, 4096), {{stream, 5}}, freed);
  EXPECT_EQ(freed.size(), 1u);
  Free(slabs, *Take(slabs, kA, 4096), {{worker, 1}}, freed);
  EXPECT_EQ(freed.size(), 1u);
  slabs.EndTimeline(worker, freed);
  EXPECT_EQ(freed.size(), 2u);
  Free(slabs, *Take(slabs, kA, 4096), {{worker, 9}}, freed);
  EXPECT_EQ(freed.size(), 3u);
  PAGODA_EXPECT_OK(slabs.CheckAccounting());
}

TEST(DeviceSlabsTest, AMappedChunkStaysWithItsScope) {
  DeviceSlabs slabs(1, kChunkBytes);
  const TimelineId worker = slabs.AddTimeline();
  std::vector<SlabPlace> freed;
  DeviceSlabs::TakenChunk taken;
  const SlabPlace place = *Take(slabs, kA, 4096, &taken);
  EXPECT_TRUE(taken.clear);  // nobody's yet, but not known to be zeros
  EXPECT_FALSE(taken.replace);
  slabs.AddImporter(place, worker, /*for_good=*/false);
  Free(slabs, place, {}, freed);
  EXPECT_FALSE(Take(slabs, kB, 4096).has_value());
  const SlabPlace again = *Take(slabs, kA, 8192, &taken);  // its own scope, another size
  EXPECT_FALSE(taken.clear);
  Free(slabs, again, {}, freed);
  slabs.EndTimeline(worker, freed);
  // Whoever the worker passed its handle to may map the memory still.
  const SlabPlace other = *Take(slabs, kB, 4096, &taken);
  EXPECT_TRUE(taken.clear);
  EXPECT_TRUE(taken.replace);
  Free(slabs, other, {}, freed);
  Take(slabs, kA, 4096, &taken);
  EXPECT_TRUE(taken.clear);
  EXPECT_FALSE(taken.replace);  // nobody had a handle of the new memory
}

TEST(DeviceSlabsTest, WhatCannotBeReplacedStaysWithItsScope) {
  DeviceSlabs slabs(1, kChunkBytes);
  const TimelineId worker = slabs.AddTimeline();
  std::vector<SlabPlace> freed;
  const SlabPlace place = *Take(slabs, kA, 4096);
  slabs.AddImporter(place, worker, /*for_good=*/true);
  Free(slabs, place, {}, freed);
  slabs.EndTimeline(worker, freed);
  EXPECT_FALSE(Take(slabs, kB, 4096).has_value());
  EXPECT_TRUE(Take(slabs, kA, 4096).has_value());
}

TEST(DeviceSlabsTest, OnlyOpenFencesAreKept) {
  DeviceSlabs slabs(2, kChunkBytes);
  const TimelineId stream = slabs.AddTimeline();
  std::vector<SlabPlace> freed;
  const SlabPlace place = *Take(slabs, kA, 4096);
  const SlabPlace beside = *Take(slabs, kA, 4096);
  EXPECT_TRUE(slabs.IsUnread(place));
  for (int i = 0; i < 100; ++i) {
    const TimelineId worker = slabs.AddTimeline();
    slabs.Keep(place, {worker, 1});
    EXPECT_FALSE(slabs.IsUnread(place));
    slabs.EndTimeline(worker, freed);
  }
  slabs.Keep(place, {stream, 1});
  EXPECT_EQ(slabs.FenceCount(place), 1u);
  slabs.Advance(stream, 1, freed);
  EXPECT_TRUE(slabs.IsUnread(place));
  EXPECT_EQ(slabs.timeline_count(), 1u);
  // Both are in another scope's way, until somebody maps the chunk.
  EXPECT_EQ(slabs.SlabsInTheWay(kB)[0], 2u);
  EXPECT_EQ(slabs.SlabsInTheWay(kB)[1], 0u);
  slabs.AddImporter(beside, stream, /*for_good=*/false);
  EXPECT_FALSE(slabs.SlabsInTheWay(kB)[0].has_value());
  EXPECT_EQ(slabs.SlabsInTheWay(kA)[0], 2u);
}

TEST(DeviceSlabsTest, AReturnedChunkIsFreeAndStillToBeCleared) {
  DeviceSlabs slabs(1, kChunkBytes);
  std::vector<SlabPlace> freed;
  Free(slabs, *Take(slabs, kA, 4096), {}, freed);
  slabs.ReturnChunk(slabs.TakeChunk(kB, 4096)->chunk);
  EXPECT_EQ(slabs.usage().reserved_bytes, 0);
  const auto own = slabs.TakeChunk(kA, 4096);
  EXPECT_FALSE(own->clear);  // its bytes are there still
  slabs.ReturnChunk(own->chunk);
  const auto taken = slabs.TakeChunk(kB, 4096);
  ASSERT_TRUE(taken.has_value());
  EXPECT_TRUE(taken->clear);
  EXPECT_FALSE(slabs.TakeChunk(kB, 4096).has_value());
  EXPECT_FALSE(DeviceSlabs(1, kChunkBytes).TakeChunk(kA, kChunkBytes + 4096).has_value());
}

TEST(DeviceSlabsTest, SeededRunsKeepEverySlabToItsHolder) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    DeviceSlabs slabs(4, kChunkBytes);
    struct Held {
      SlabPlace place;
      ScopeId scope;
      std::vector<Fence> fences;  // given back, when not empty
    };
    std::vector<Held> held;
    std::map<TimelineId, uint64_t> reached;
    std::map<uint32_t, std::map<TimelineId, ScopeId>> importers;  // by chunk
    for (int i = 0; i < 3; ++i) reached[slabs.AddTimeline()] = 0;
    const auto any = [&] { return std::next(reached.begin(), random() % reached.size())->first; };
    const auto forget = [&](const std::vector<SlabPlace>& freed) {
      for (const SlabPlace& place : freed) {
        const auto it = std::find_if(held.begin(), held.end(), [&](const Held& h) {
          return h.place.chunk == place.chunk && h.place.offset == place.offset;
        });
        ASSERT_NE(it, held.end());
        for (const Fence& fence : it->fences) {
          const auto timeline = reached.find(fence.timeline);
          ASSERT_TRUE(timeline == reached.end() || timeline->second >= fence.value);
        }
        held.erase(it);
      }
    };
    for (int step = 0; step < 2000; ++step) {
      std::vector<SlabPlace> freed;
      const uint32_t what = random() % 100;
      if (what < 45) {
        const ScopeId& scope = random() % 2 == 0 ? kA : kB;
        const auto place = Take(slabs, scope, 4096 * (1 + random() % 5));
        if (!place.has_value()) continue;
        for (const Held& other : held) {
          if (other.place.chunk != place->chunk) continue;
          ASSERT_EQ(other.scope, scope) << "seed " << seed << " step " << step;
          ASSERT_TRUE(other.place.offset + other.place.bytes <= place->offset ||
                      place->offset + place->bytes <= other.place.offset);
        }
        for (const auto& [timeline, its] : importers[place->chunk]) ASSERT_EQ(its, scope);
        held.push_back({*place, scope, {}});
      } else if (what < 80 && !held.empty()) {
        Held& one = held[random() % held.size()];
        if (!one.fences.empty()) continue;
        if (random() % 4 == 0) {
          const TimelineId worker = any();
          slabs.AddImporter(one.place, worker, /*for_good=*/false);
          importers[one.place.chunk][worker] = one.scope;
        }
        one.fences = {{any(), random() % 50}};
        if (random() % 2 == 0) one.fences.push_back({any(), random() % 50});
        for (Fence& fence : one.fences) fence.value += reached[fence.timeline] / 2;
        const SlabPlace place = one.place;
        const std::vector<Fence> fences = one.fences;
        Free(slabs, place, fences, freed);
      } else if (what < 97) {
        const TimelineId timeline = any();
        slabs.Advance(timeline, reached[timeline] += random() % 20, freed);
      } else {
        const TimelineId timeline = any();
        reached.erase(timeline);
        for (auto& [chunk, workers] : importers) workers.erase(timeline);
        slabs.EndTimeline(timeline, freed);
        reached[slabs.AddTimeline()] = 0;
      }
      forget(freed);
      PAGODA_ASSERT_OK(slabs.CheckAccounting());
    }
    std::vector<SlabPlace> freed;
    for (const Held& one : held) {
      if (one.fences.empty()) Free(slabs, one.place, {}, freed);
    }
    for (const auto& [timeline, value] : reached) slabs.EndTimeline(timeline, freed);
    EXPECT_EQ(slabs.usage().reserved_bytes, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace pagoda
