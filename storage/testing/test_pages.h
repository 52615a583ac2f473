// Small pages for tests of the storage layer. A page's bytes follow from its spec, so that a test
// can say of any page that it reads whether every byte is right, without keeping a copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/host_page.h"

namespace pagoda {

struct TestPage {
  std::string tenant = "acme";
  PageKey parent;  // ignored at a root
  bool parent_is_root = true;
  uint32_t token = 0;                       // with the parent it makes the key
  Precision precision = Precision::kRaw16;  // raw16, q8 or q4
  Precision fidelity = Precision::kRaw16;
  uint64_t content = 0;  // another content under the same key
  uint64_t backend_tag = 0;
  uint64_t base_position = 0;
  uint32_t segment_bytes = 5000;  // of each of the two segments of raw16; codes are in proportion

  ScopeId scope() const;
  RecordKey record() const;
  // The page that follows this one.
  TestPage Child(uint32_t token) const;
};

// The first page of a chain.
TestPage TestRoot(uint32_t token);

// Complete but for the checksums.
PageHeader HeaderOf(const TestPage& page);
// The payload of one segment.
std::string SegmentBytes(const TestPage& page, const PageHeader& header, size_t index);
// Writes all segments and their checksums.
void Fill(const TestPage& page, StagedPage& staged);
// Every byte and every field is that of `page`.
bool IsExactly(const HostPage& host, const TestPage& page);

// `count` pages in one chain.
std::vector<TestPage> TestChain(int count, uint32_t first_token = 1, TestPage like = {});

}  // namespace pagoda
