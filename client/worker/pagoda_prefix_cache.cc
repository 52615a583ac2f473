#include "client/worker/pagoda_prefix_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/crc32c.h"

namespace pagoda {
namespace {

// After the answer is out nobody waits for the last pushes, so they may take a while.
constexpr absl::Duration kFinishWait = absl::Seconds(5);

// A copy of a page's payload that lives until it is sent.
struct PushedPage {
  std::vector<kernels::AlignedBuffer> segments;
};

}  // namespace

void PagodaPrefixCache::Note(absl::Status status) {
  if (last_problem_.ok()) last_problem_ = std::move(status);
}

client::LookupQuery PagodaPrefixCache::QueryFor(const KvSequence& sequence,
                                                absl::Span<const PageKey> keys) const {
  client::LookupQuery query;
  query.chains = {{info_->id, std::vector<PageKey>(keys.begin(), keys.end())}};
  query.precision_min = sequence.options().precision;
  query.fidelity_min = sequence.options().precision;
  query.sequence_id = sequence_id_;
  return query;
}

PrefixHit PagodaPrefixCache::Load(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) {
  Finish();
  last_problem_ = absl::OkStatus();
  if (!client_.connected()) {
    Note(absl::UnavailableError("no session with the daemon"));
    return {};
  }
  info_ = client_.FindScope(scope_);
  if (!info_.has_value()) {
    Note(absl::PermissionDeniedError(
        absl::StrCat("the daemon offers no scope ", ScopeName(scope_), " to this caller")));
    return {};
  }
  announced_tokens_ = static_cast<int64_t>(prompt_ids.size());
  sequence_id_ = client_.OpenSequence(prompt_ids.size(),
                                      static_cast<uint32_t>(sequence.options().window_tokens),
                                      sequence.options().precision);
  // The last token is always computed here: its logits are the answer's first.
  if (prompt_ids.empty()) return {};
  const auto page_tokens = static_cast<uint32_t>(sequence.page_tokens());
  keys_ = KeyChain(info_->root, prompt_ids.subspan(0, prompt_ids.size() - 1), page_tokens);
  if (keys_.empty()) return {};

  const absl::StatusOr<client::LookupResult> hit = client_.Lookup(QueryFor(sequence, keys_));
  if (!hit.ok()) {
    Note(hit.status());
    return {};
  }
  if (hit->pages.empty()) return {};
  std::vector<Precision> precisions;
  for (const client::FoundPage& page : hit->pages) precisions.push_back(page.precision);
  const int64_t usable = sequence.UsablePages(precisions, static_cast<int64_t>(prompt_ids.size()));
  PrefixHit result = LoadPages(usable, *hit, sequence);
  client_.Release(hit->lease);
  loaded_pages_ = result.tokens / page_tokens;
  return result;
}

PrefixHit PagodaPrefixCache::LoadPages(int64_t usable_pages, const client::LookupResult& hit,
                                       KvSequence& sequence) {
  PrefixHit result;
  // Pages behind the window are read at the sequence's precision: do not move more. Those in the
  // window come as exact as the daemon has them.
  const int64_t encoded = std::min(usable_pages, sequence.AgedPageCount(usable_pages));
  for (const auto& [begin, end, at_most] :
       {std::tuple{int64_t{0}, encoded, sequence.options().precision},
        std::tuple{encoded, usable_pages, Precision::kNone}}) {
    if (begin == end) continue;
    absl::StatusOr<client::FetchResult> fetched = client_.Fetch(
        hit, keys_, {static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin), at_most});
    if (!fetched.ok()) {
      Note(fetched.status());
      return result;
    }
    int64_t index = begin;
    for (client::FetchedPage& page : fetched->pages) {
      // What was found at q8 may have lost its lo planes since.
      const Precision needed = sequence.UsablePrecision(index, announced_tokens_);
      const Precision precision = PrecisionOf(page.header.planes);
      if (precision < needed) {
        Note(absl::AbortedError(absl::StrCat("page ", index, " came at ", PrecisionName(precision),
                                             ", ", PrecisionName(needed), " was found")));
        return result;
      }
      // Where the lookup found it: by now everything is in the daemon's memory.
      const client::PageTier tier = hit.pages[static_cast<size_t>(index++)].tier;
      if (!Append(std::move(page), tier, sequence, result)) return result;
    }
    if (!fetched->status.ok()) {
      Note(fetched->status);
      return result;
    }
  }
  return result;
}

bool PagodaPrefixCache::Append(client::FetchedPage page, client::PageTier tier,
                               KvSequence& sequence, PrefixHit& result) {
  const Precision precision = PrecisionOf(page.header.planes);
  const Precision fidelity = page.header.fidelity;
  const int64_t bytes = page.header.stored_bytes();
  PageBuffer buffer(std::move(page.header), std::move(page.segments));
  if (absl::Status status = sequence.AppendLoaded(std::move(buffer), fidelity); !status.ok()) {
    Note(std::move(status));
    return false;
  }
  result.precision = result.tokens == 0 ? precision : std::min(result.precision, precision);
  result.tokens += sequence.page_tokens();
  result.bytes += bytes;
  const bool slower = tier == client::PageTier::kSsd || tier == client::PageTier::kPeer;
  if (result.tier == "none" || slower) result.tier = std::string(PageTierName(tier));
  return true;
}

void PagodaPrefixCache::StorePage(const KvSequence& sequence, int64_t page_index,
                                  absl::Span<const uint32_t> page_ids) {
  if (!info_.has_value()) return;
  const auto index = static_cast<size_t>(page_index);
  if (index >= keys_.size()) {
    if (index > keys_.size()) return;  // Only after a failure: the chain is cut.
    keys_.push_back(KeyOf(keys_.empty() ? info_->root : keys_.back(), page_ids));
  }
  if (page_index < loaded_pages_ || !info_->may_push || push_failed_) return;
  const PageBuffer* raw = sequence.raw_page(page_index);
  if (raw == nullptr) return;
  if (pusher_ == nullptr) {
    absl::StatusOr<std::unique_ptr<client::Pusher>> opened =
        client_.OpenPusher(sequence_id_, nullptr);
    if (!opened.ok()) {
      push_failed_ = true;
      Note(opened.status());
      return;
    }
    pusher_ = *std::move(opened);
  }
  auto copy = std::make_shared<PushedPage>();
  client::PushItem item;
  item.scope = info_->id;
  item.key = keys_[index];
  item.parent = index == 0 ? info_->root : keys_[index - 1];
  item.parent_is_root = index == 0;
  item.token_ids.assign(page_ids.begin(), page_ids.end());
  item.base_position = static_cast<uint64_t>(page_index * sequence.page_tokens());
  item.fidelity = sequence.fidelity(page_index);
  for (size_t i = 0; i < raw->segments().size(); ++i) {
    const size_t length = raw->header().segments[i].length;
    kernels::AlignedBuffer& segment = copy->segments.emplace_back(static_cast<int64_t>(length));
    std::memcpy(segment.data(), raw->segments()[i].data(), length);
    item.segments.push_back(segment.span());
    item.segment_crc32c.push_back(Crc32c(segment.span()));
  }
  item.owner = std::move(copy);
  if (absl::Status status = pusher_->Push(std::move(item)); !status.ok()) {
    push_failed_ = true;  // Its children could not be committed either.
    Note(std::move(status));
  }
}

void PagodaPrefixCache::Advance(int64_t token_count) {
  // The daemon knows the prompt's length from the start: its pages may age while it is computed.
  if (!info_.has_value() || token_count <= announced_tokens_) return;
  announced_tokens_ = token_count;
  client_.AdvanceSequence(sequence_id_, static_cast<uint64_t>(token_count));
}

void PagodaPrefixCache::Finish() {
  if (pusher_ != nullptr) {
    if (absl::Status status = pusher_->Flush(kFinishWait); !status.ok()) Note(std::move(status));
    pusher_.reset();
  }
  if (info_.has_value()) client_.CloseSequence(sequence_id_);
  info_.reset();
  keys_.clear();
  loaded_pages_ = 0;
  push_failed_ = false;
}

}  // namespace pagoda
