// Fuzzes the way from records on SSD to a directory: any number of records with right checksums and
// any content, as TieredStore::Open() takes them in. Whatever they say, the directory must come out
// consistent: bytes and counts are the sums over the pages, every page's chain reaches a root, and
// eviction in the policy's order empties it.
//
// Input  records of a fixed length, each a record key and a directory record, to be mended
#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/base/check.h"
#include "storage/directory.h"
#include "storage/testing/mended_record.h"

namespace pagoda {
namespace {

constexpr size_t kEntryBytes = RecordKey::kEncodedBytes + DirectoryRecord::kEncodedBytes;

void TakeIn(absl::string_view input, Directory& directory) {
  for (; input.size() >= kEntryBytes; input.remove_prefix(kEntryBytes)) {
    const auto key = RecordKey::Decode(input.substr(0, RecordKey::kEncodedBytes));
    if (!key.has_value() || directory.Find(*key) != kNoEntry) continue;  // keys are unique on disk
    const std::string bytes(input.substr(RecordKey::kEncodedBytes, DirectoryRecord::kEncodedBytes));
    const auto record = DecodeDirectoryRecord(*key, AsBytes(MendedRecord(*key, bytes)));
    if (record.ok()) (void)directory.AddSsd(*record, absl::ZeroDuration());
  }
}

void CheckSums(const Directory& directory) {
  int64_t bytes = 0;
  int64_t pages = 0;
  for (EntryId id = 1; id < directory.slot_count(); ++id) {
    const DirectoryEntry& entry = directory.at(id);
    if (!entry.alive()) continue;
    bytes += entry.ssd_bytes();
    ++pages;
  }
  PAGODA_CHECK(directory.ssd_bytes() == bytes);
  PAGODA_CHECK(directory.page_count() == pages);
}

// Every chain ends at a root, in as many steps as there are pages at most.
void CheckChains(const Directory& directory) {
  for (EntryId id = 1; id < directory.slot_count(); ++id) {
    if (!directory.at(id).alive()) continue;
    EntryId at = id;
    for (int64_t steps = 0; !directory.at(at).parent_is_root; ++steps) {
      PAGODA_CHECK(steps <= directory.page_count());
      at = directory.at(at).parent;
      PAGODA_CHECK(at != kNoEntry);
      PAGODA_CHECK(directory.at(at).alive());
    }
  }
}

void Drop(const std::vector<EntryId>& ids, Directory& directory) {
  for (const EntryId id : ids) directory.DropSsd(id);
  CheckSums(directory);
}

}  // namespace
}  // namespace pagoda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;  // NOLINT: an entry point of one function
  Directory directory;
  TakeIn(absl::string_view(reinterpret_cast<const char*>(data), size), directory);
  CheckSums(directory);
  Drop(directory.Unreachable(), directory);
  CheckChains(directory);
  while (directory.page_count() > 0) {
    const std::vector<EntryId> victims =
        directory.ssd_policy().PickVictims(1, [](EntryId) { return true; });
    PAGODA_CHECK(!victims.empty());
    Drop(victims, directory);
  }
  PAGODA_CHECK(directory.ssd_bytes() == 0);
  return 0;
}
