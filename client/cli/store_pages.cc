#include "client/cli/store_pages.h"

#include <cstring>
#include <random>
#include <utility>

#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {

StorePages::StorePages(const kernels::PageShape& shape, uint64_t chain_length)
    : chain_length_(chain_length) {
  like_.identity = Identity{Sha256("pagoda bench storage")};
  like_.record.head_count = static_cast<uint16_t>(shape.head_count);
  like_.scope = ScopeIdOf({ScopeKind::kPrivate, "bench"});
  like_.page_tokens = static_cast<uint32_t>(shape.page_tokens);
  like_.layer_count = static_cast<uint16_t>(shape.layer_count);
  like_.head_dim = static_cast<uint16_t>(shape.head_dim);
  like_.rope_theta = 10000;
  like_.pusher.bytes[0] = 1;
  like_.created_unix_seconds = 1;
  kernels::AppendPlanes(Precision::kRaw16, shape, like_);
  std::mt19937_64 random(1);
  for (SegmentEntry& segment : like_.segments) {
    std::string& bytes = segments_.emplace_back(segment.length, '\0');
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t value = random();
      std::memcpy(bytes.data() + at, &value, sizeof(value));
    }
    segment.crc32c = Crc32c(AsBytes(bytes));
  }
  like_.content_hash = ContentHashOf(like_.segments);
}

RecordKey StorePages::Key(uint64_t number) const {
  RecordKey key = like_.record;
  key.key =
      PageKey{Sha256(absl::string_view(reinterpret_cast<const char*>(&number), sizeof(number)))};
  return key;
}

PageHeader StorePages::Header(uint64_t number) const {
  PageHeader header = like_;
  header.record = Key(number);
  const uint64_t index = number % chain_length_;
  header.parent_is_root = index == 0;
  if (index > 0) header.parent = Key(number - 1).key;
  header.base_position = index * header.page_tokens;
  return header;
}

absl::Status StorePages::Push(TieredStore& store, uint64_t number) const {
  PAGODA_ASSIGN_OR_RETURN(StagedPage staged, store.Stage(scope(), Header(number)));
  for (size_t i = 0; i < segments_.size(); ++i) {
    std::memcpy(staged.segment(i).data(), segments_[i].data(), segments_[i].size());
  }
  return store.Commit(std::move(staged)).status();
}

}  // namespace pagoda::cli
