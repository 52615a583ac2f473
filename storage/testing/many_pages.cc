#include "storage/testing/many_pages.h"

#include <cstring>

#include "storage/base/check.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

PageKey NumberedKey(uint32_t number) {
  // Spread as a real key is: the table hashes by its first bytes.
  PageKey key;
  const uint64_t spread = number * 0x9e3779b97f4a7c15u;
  std::memcpy(key.bytes.data(), &spread, sizeof(spread));
  std::memcpy(key.bytes.data() + sizeof(spread), &number, sizeof(number));
  return key;
}

}  // namespace

DirectoryRecord NumberedRecord(uint32_t number, uint32_t parent) {
  static const DirectoryRecord like = DirectoryRecordOf(HeaderOf(TestRoot(1)));
  DirectoryRecord record = like;
  record.record.key = NumberedKey(number);
  record.parent_is_root = parent == 0;
  if (parent != 0) record.parent = NumberedKey(parent);
  return record;
}

void FillDirectory(Directory& directory, const ManyPages& pages) {
  HostPagePtr shared;
  if (pages.in_host) {
    auto tier = HostTier::Create({});
    PAGODA_CHECK(tier.ok());
    auto staged = StagedPage::Create(*tier, HeaderOf(TestRoot(1)));
    PAGODA_CHECK(staged.ok());
    Fill(TestRoot(1), *staged);
    auto page = StagedPage::Freeze(*std::move(staged));
    PAGODA_CHECK(page.ok());
    shared = *std::move(page);
  }
  for (uint32_t number = 1; number <= pages.page_count; ++number) {
    const bool first = (number - 1) % pages.chain_pages == 0;
    const auto id =
        directory.AddSsd(NumberedRecord(number, first ? 0 : number - 1), absl::ZeroDuration());
    PAGODA_CHECK(id.ok());
    if (pages.in_host) directory.SetHost(*id, shared, /*dirty=*/false);
  }
}

}  // namespace pagoda
