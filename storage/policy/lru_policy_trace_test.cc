// Goal: leaf-first LRU hits as often as its definition says on a real trace. Method: replay the
// first 1000 requests of the Mooncake conversation trace (512-token blocks) and compare prefix hits
// with counts from two independent simulators. The trace is not part of this repository: set
// PAGODA_TRACES_DIR to a folder that has mooncake/conversation_trace.jsonl, else the test is
// skipped.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "storage/policy/lru_policy.h"

namespace pagoda::policy {
namespace {

using Request = std::vector<EntryId>;  // block ids + 1, root first

std::vector<Request> ReadRequests(const std::string& path, int count_max) {
  std::vector<Request> requests;
  std::ifstream file(path);
  std::string line;
  while (static_cast<int>(requests.size()) < count_max && std::getline(file, line)) {
    const char* at = line.c_str() + line.find("\"hash_ids\"");
    at = std::strchr(at, '[') + 1;
    Request request;
    while (*at != ']') {
      char* end;
      request.push_back(static_cast<EntryId>(std::strtoul(at, &end, 10)) + 1);
      at = end;
      while (*at == ',' || *at == ' ') ++at;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

int64_t PrefixHits(const std::vector<Request>& requests, int64_t capacity) {
  LruPolicy lru;
  int64_t hits = 0;
  for (const Request& request : requests) {
    for (const EntryId id : request) {
      if (!lru.resident(id)) break;
      ++hits;
    }
    for (size_t i = 0; i < request.size(); ++i) {
      if (!lru.resident(request[i])) {
        lru.Insert({request[i], i == 0 ? kNoEntry : request[i - 1], 1});
      }
    }
    for (auto id = request.rbegin(); id != request.rend(); ++id) lru.Touch(*id);
    const int64_t excess = lru.bytes() - capacity;
    if (excess <= 0) continue;
    for (const EntryId id : lru.PickVictims(excess, [](EntryId) { return true; })) lru.Remove(id);
  }
  return hits;
}

TEST(LruPolicyTraceTest, ConversationTraceHasTheGoldenHits) {
  const char* folder = std::getenv("PAGODA_TRACES_DIR");
  if (folder == nullptr) {
    std::fprintf(stderr, "SKIPPED: PAGODA_TRACES_DIR is not set, so no trace was replayed\n");
    GTEST_SKIP() << "PAGODA_TRACES_DIR is not set";
  }
  const std::vector<Request> requests =
      ReadRequests(std::string(folder) + "/mooncake/conversation_trace.jsonl", 1000);
  ASSERT_EQ(requests.size(), 1000u);
  int64_t references = 0;
  std::unordered_map<EntryId, int> unique;
  for (const Request& request : requests) {
    for (const EntryId id : request) ++unique[id], ++references;
  }
  ASSERT_EQ(references, 27305);
  ASSERT_EQ(unique.size(), 21514u);
  const std::pair<double, int64_t> golden[] = {
      {0.01, 999}, {0.05, 1052}, {0.10, 1170}, {0.25, 2937}, {0.50, 4758}};
  for (const auto& [share, hits] : golden) {
    const auto capacity = static_cast<int64_t>(share * static_cast<double>(unique.size()));
    EXPECT_EQ(PrefixHits(requests, capacity), hits) << share;
  }
}

}  // namespace
}  // namespace pagoda::policy
