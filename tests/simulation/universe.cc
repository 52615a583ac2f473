#include "tests/simulation/universe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/testing/test_pages.h"

namespace pagoda::simulation {
namespace {

constexpr std::array<int, Universe::kTreePages> kParents = {kNoKey, 0, 1, 2, 3, 4, 1, 6, 7, 8};

HostPagePtr MakePage(const std::shared_ptr<HostTier>& tier, TestPage page, int form) {
  constexpr std::array kPrecisions = {Precision::kRaw16, Precision::kQ8, Precision::kQ4};
  page.fidelity = kPrecisions[static_cast<size_t>(FidelityIndexOf(form))];
  page.precision = kPrecisions[static_cast<size_t>(PrecisionIndexOf(form))];
  page.content = static_cast<uint64_t>(FidelityIndexOf(form));
  auto staged = StagedPage::Create(tier, HeaderOf(page));
  PAGODA_CHECK(staged.ok());
  Fill(page, *staged);
  // As a commit does: the fingerprint of what was pushed.
  if (page.precision == Precision::kRaw16) {
    staged->mutable_header().content_hash = ContentHashOf(staged->header().segments);
  }
  auto frozen = StagedPage::Freeze(*std::move(staged));
  PAGODA_CHECK(frozen.ok());
  return *std::move(frozen);
}

}  // namespace

Universe::Universe() {
  HostTierOptions options;
  options.capacity_bytes = int64_t{96} << 20;
  options.chunk_bytes_max = int64_t{1} << 20;
  auto tier = HostTier::Create(options);
  PAGODA_CHECK(tier.ok());
  tier_ = *std::move(tier);
  for (int scope = 0; scope < kScopes; ++scope) {
    for (int tree = 0; tree < kTrees; ++tree) {
      std::vector<TestPage> pages;
      for (int i = 0; i < kTreePages; ++i) {
        const int parent = kParents[static_cast<size_t>(i)];
        const auto token = static_cast<uint32_t>(100 * tree + i + 1);
        TestPage page = TestRoot(token);
        page.tenant = absl::StrCat("tenant-", scope);
        if (parent != kNoKey) page = pages[static_cast<size_t>(parent)].Child(token);
        page.segment_bytes = 20000 + 6000 * static_cast<uint32_t>((tree + i) % 5);
        pages.push_back(page);
        KnownPage known;
        known.record = page.record();
        known.scope = page.scope();
        known.scope_index = scope;
        const int first = key_count() - i;
        known.parent = parent == kNoKey ? kNoKey : first + parent;
        for (int form = 0; form < kForms; ++form) {
          known.forms[static_cast<size_t>(form)] = MakePage(tier_, page, form);
        }
        scopes_[static_cast<size_t>(scope)] = known.scope;
        index_.emplace(known.record, key_count());
        pages_.push_back(std::move(known));
      }
    }
  }
}

int Universe::Find(const RecordKey& record) const {
  const auto it = index_.find(record);
  return it == index_.end() ? kNoKey : it->second;
}

int Universe::FormOfPage(int key, const HostPagePtr& page) const {
  for (int form = 0; form < kForms; ++form) {
    if (at(key).forms[static_cast<size_t>(form)] == page) return form;
  }
  return kNoForm;
}

std::vector<int> Universe::PathTo(int key) const {
  std::vector<int> path;
  for (; key != kNoKey; key = at(key).parent) path.push_back(key);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace pagoda::simulation
