#include "storage/testing/test_pages.h"

#include <algorithm>
#include <cstring>

#include "storage/base/crc32c.h"
#include "storage/base/digest.h"

namespace pagoda {
namespace {

constexpr uint16_t kLayers = 2;
constexpr uint16_t kHeads = 3;

// One plane of whole layers, a segment each.
void AddPlane(PageHeader& header, PlaneKind kind, Tensor tensor, uint8_t bit_begin,
              uint32_t segment_bytes) {
  PlaneEntry plane;
  plane.kind = kind;
  plane.tensor = tensor;
  plane.bit_begin = bit_begin;
  plane.bit_count = kind == PlaneKind::kCodes ? 4 : 0;
  plane.layer_count = kLayers;
  plane.head_count = kHeads;
  plane.first_segment = static_cast<uint32_t>(header.segments.size());
  plane.segment_count = kLayers;
  header.planes.push_back(plane);
  for (uint16_t layer = 0; layer < kLayers; ++layer) {
    SegmentEntry segment;
    segment.length = segment_bytes + layer;  // no two are alike
    segment.layer_begin = layer;
    segment.layer_count = 1;
    header.segments.push_back(segment);
  }
}

void AddTables(const TestPage& page, PageHeader& header) {
  if (page.precision == Precision::kRaw16) {
    AddPlane(header, PlaneKind::kRaw16, Tensor::kBoth, 0, page.segment_bytes);
    return;
  }
  const uint32_t code_bytes = page.segment_bytes / 8 + 1;
  AddPlane(header, PlaneKind::kCodes, Tensor::kK, 4, code_bytes);
  AddPlane(header, PlaneKind::kCodes, Tensor::kV, 4, code_bytes);
  if (page.precision != Precision::kQ8) return;
  AddPlane(header, PlaneKind::kCodes, Tensor::kK, 0, code_bytes);
  AddPlane(header, PlaneKind::kCodes, Tensor::kV, 0, code_bytes);
}

void SetChecksums(const TestPage& page, PageHeader& header) {
  for (size_t i = 0; i < header.segments.size(); ++i) {
    header.segments[i].crc32c = Crc32c(AsBytes(SegmentBytes(page, header, i)));
  }
}

}  // namespace

ScopeId TestPage::scope() const { return ScopeIdOf({ScopeKind::kPrivate, tenant}); }

RecordKey TestPage::record() const {
  const PageKey root{Sha256(tenant)};
  return {KeyOf(parent_is_root ? root : parent, {token}), 0, 0, kHeads};
}

TestPage TestPage::Child(uint32_t child_token) const {
  TestPage child = *this;
  child.parent = record().key;
  child.parent_is_root = false;
  child.token = child_token;
  child.base_position = base_position + 64;
  return child;
}

TestPage TestRoot(uint32_t token) {
  TestPage page;
  page.token = token;
  return page;
}

PageHeader HeaderOf(const TestPage& page) {
  PageHeader header;
  header.identity.bytes[0] = 7;
  header.record = page.record();
  header.parent = page.parent_is_root ? PageKey{} : page.parent;
  header.parent_is_root = page.parent_is_root;
  header.scope = page.scope();
  header.fidelity = page.fidelity;
  header.page_tokens = 64;
  header.base_position = page.base_position;
  header.layer_count = kLayers;
  header.head_dim = 64;
  header.backend_tag = page.backend_tag;
  header.pusher.bytes[0] = 3;
  header.created_unix_seconds = 1700000000;
  AddTables(page, header);
  if (page.precision != Precision::kRaw16) {
    header.recipe = CodeRecipe::kEmbedded8;
    header.rotation = Rotation::kHadamardV1;
    TestPage raw = page;
    raw.precision = Precision::kRaw16;
    PageHeader raw_header;
    raw_header.record = header.record;
    AddTables(raw, raw_header);
    SetChecksums(raw, raw_header);
    header.content_hash = ContentHashOf(raw_header.segments);
  }
  AssignOffsets(header);
  return header;
}

std::string SegmentBytes(const TestPage& page, const PageHeader& header, size_t index) {
  uint64_t state;
  std::memcpy(&state, header.record.key.bytes.data(), sizeof(state));
  state ^= (page.content + 1) * 0x9e3779b97f4a7c15u ^ (index + 1) * 0xbf58476d1ce4e5b9u ^
           static_cast<uint64_t>(page.precision) << 56;
  std::string bytes(header.segments[index].length, '\0');
  for (size_t at = 0; at < bytes.size(); at += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes.data() + at, &state, std::min(sizeof(state), bytes.size() - at));
  }
  return bytes;
}

void Fill(const TestPage& page, StagedPage& staged) {
  for (size_t i = 0; i < staged.segment_count(); ++i) {
    const std::string bytes = SegmentBytes(page, staged.header(), i);
    std::memcpy(staged.segment(i).data(), bytes.data(), bytes.size());
  }
  staged.ComputeChecksums();
}

bool IsExactly(const HostPage& host, const TestPage& page) {
  PageHeader expected = HeaderOf(page);
  if (host.segment_count() != expected.segments.size()) return false;
  SetChecksums(page, expected);
  if (page.precision == Precision::kRaw16) expected.content_hash = ContentHashOf(expected.segments);
  for (size_t i = 0; i < host.segment_count(); ++i) {
    if (AsText(host.segment(i)) != absl::string_view(SegmentBytes(page, expected, i))) return false;
    for (const std::byte padding : host.padded_segment(i).subspan(host.segment(i).size())) {
      if (padding != std::byte{0}) return false;
    }
  }
  const auto decoded = DecodePageHeader(host.header_bytes());
  return decoded.ok() && *decoded == expected && host.header() == expected;
}

std::vector<TestPage> TestChain(int count, uint32_t first_token, TestPage like) {
  std::vector<TestPage> chain;
  for (int i = 0; i < count; ++i) {
    const auto token = first_token + static_cast<uint32_t>(i);
    if (i == 0) {
      like.token = token;
      chain.push_back(like);
    } else {
      chain.push_back(chain.back().Child(token));
    }
  }
  return chain;
}

}  // namespace pagoda
