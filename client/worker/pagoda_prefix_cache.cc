#include "client/worker/pagoda_prefix_cache.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/push_memory.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

// After the answer is out nobody waits for the last pushes, so they may take a while.
constexpr absl::Duration kFinishWait = absl::Seconds(5);

// Beyond the deadline of every fetch.
constexpr absl::Duration kLayerWait = absl::Minutes(1);

// Pages whose bytes arrive where a sequence has them already.
class LayeredPages : public LayerSource {
 public:
  LayeredPages(client::Client& client, const client::LeaseId& lease, size_t count)
      : client_(client), lease_(lease), buffers_(count), begun_(count) {}
  ~LayeredPages() override {
    fetch_.reset();  // nobody writes any more
    client_.Release(lease_);
  }

  absl::Status Start(const client::LookupResult& hit, absl::Span<const PageKey> keys,
                     Precision at_most) {
    PAGODA_ASSIGN_OR_RETURN(
        fetch_, client_.StartFetch(hit, keys,
                                   {.page_count = static_cast<uint32_t>(buffers_.size()),
                                    .precision_max = at_most,
                                    .target = [this](uint32_t page, const PageHeader& header) {
                                      return MemoryFor(page, header);
                                    }}));
    return absl::OkStatus();
  }
  absl::Status WaitHeaders() {
    PAGODA_ASSIGN_OR_RETURN(const std::vector<PageHeader> headers, fetch_->WaitHeaders(kLayerWait));
    promised_ = headers.size();
    return absl::OkStatus();
  }
  // REQUIRES: WaitHeaders(). Pages to be taken, by index; one that is not stays as long as bytes
  // may come for it.
  size_t promised() const { return promised_; }
  PageBuffer& page(size_t index) { return *buffers_[index]; }

  absl::Status WaitLayer(int32_t layer) override {
    if (!status_.ok() || fetch_ == nullptr) return status_;
    status_ = fetch_->WaitLayer(static_cast<uint32_t>(layer), kLayerWait);
    return status_;
  }
  absl::Status WaitAll() override {
    if (!status_.ok() || fetch_ == nullptr) return status_;
    const client::FetchResult result = fetch_->Wait();
    fetch_.reset();
    if (result.pages.size() < promised_) {
      status_ =
          result.status.ok() ? absl::AbortedError("pages were lost on their way") : result.status;
    }
    return status_;
  }

 private:
  // A page that comes a second time has lost the first one's memory to the sequence.
  std::vector<MutableByteSpan> MemoryFor(uint32_t page, const PageHeader& header) {
    if (page >= buffers_.size() || begun_[page]) return {};
    begun_[page] = true;
    std::vector<kernels::AlignedBuffer> segments;
    for (const SegmentEntry& segment : header.segments) {
      segments.push_back(kernels::AlignedBuffer::Uninitialized(segment.stored_bytes()));
    }
    buffers_[page].emplace(header, std::move(segments));
    const absl::Span<const MutableByteSpan> spans = buffers_[page]->mutable_segments();
    return {spans.begin(), spans.end()};
  }

  client::Client& client_;
  const client::LeaseId lease_;
  // Written before WaitHeaders() returns, or for pages that are not promised.
  std::vector<std::optional<PageBuffer>> buffers_;
  std::vector<char> begun_;
  std::unique_ptr<client::PageFetch> fetch_;  // null once all is there
  size_t promised_ = 0;
  absl::Status status_;
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

PrefixHit PagodaPrefixCache::LoadFound(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence,
                                       bool by_layer) {
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
  PrefixHit result =
      by_layer ? LoadLayers(usable, *hit, sequence) : LoadPages(usable, *hit, sequence);
  if (result.layers == nullptr) client_.Release(hit->lease);
  loaded_pages_ = result.tokens / page_tokens;
  return result;
}

PrefixHit PagodaPrefixCache::LoadPages(int64_t usable_pages, const client::LookupResult& hit,
                                       KvSequence& sequence) {
  PrefixHit result;
  // Pages behind the window are read at the sequence's precision: do not move more. Those in the
  // window come as exact as the daemon has them.
  const int64_t aged = std::min(usable_pages, sequence.AgedPageCount(usable_pages));
  if (FetchPages(hit, 0, aged, sequence.options().precision, sequence, result)) {
    FetchPages(hit, aged, usable_pages, Precision::kNone, sequence, result);
  }
  return result;
}

bool PagodaPrefixCache::FetchPages(const client::LookupResult& hit, int64_t begin, int64_t end,
                                   Precision at_most, KvSequence& sequence, PrefixHit& result) {
  if (begin == end) return true;
  absl::StatusOr<client::FetchResult> fetched =
      client_.Fetch(hit, keys_,
                    {.page_begin = static_cast<uint32_t>(begin),
                     .page_count = static_cast<uint32_t>(end - begin),
                     .precision_max = at_most});
  if (!fetched.ok()) {
    Note(fetched.status());
    return false;
  }
  int64_t index = begin;
  for (client::FetchedPage& page : fetched->pages) {
    // Where the lookup found it: by now everything is in the daemon's memory.
    const client::PageTier tier = hit.pages[static_cast<size_t>(index++)].tier;
    PageBuffer buffer(std::move(page.header), std::move(page.segments));
    if (!Append(buffer, tier, sequence, result)) return false;
  }
  if (!fetched->status.ok()) {
    Note(fetched->status);
    return false;
  }
  return true;
}

PrefixHit PagodaPrefixCache::LoadLayers(int64_t usable_pages, const client::LookupResult& hit,
                                        KvSequence& sequence) {
  const Precision precision = sequence.options().precision;
  const bool raw = precision == Precision::kRaw16;
  const int64_t count =
      raw ? usable_pages : std::min(usable_pages, sequence.AgedPageCount(usable_pages));
  // q3 and q2 are widened when they arrive, and a profile's pages may have to be cut: both read the
  // bytes.
  if (count == 0 || precision < Precision::kQ4 || !sequence.options().k_lo_layers.empty()) {
    return LoadPages(usable_pages, hit, sequence);
  }
  auto pages = std::make_shared<LayeredPages>(client_, hit.lease, static_cast<size_t>(count));
  absl::Status status = pages->Start(hit, keys_, raw ? Precision::kNone : precision);
  PrefixHit result;
  if (status.ok()) status = pages->WaitHeaders();
  if (!status.ok()) {
    Note(status);
    return result;
  }
  bool whole = false;  // whether somebody reads the bytes before attention does
  bool appended = true;
  for (size_t i = 0; i < pages->promised() && appended; ++i) {
    PageBuffer& buffer = pages->page(i);
    whole = whole || PrecisionOf(buffer.header().planes) != precision;
    appended = Append(buffer, hit.pages[i].tier, sequence, result);
  }
  if (appended && static_cast<int64_t>(pages->promised()) == count) {
    FetchPages(hit, count, usable_pages, Precision::kNone, sequence, result);
  }
  // Lost pages are told by the source: the request begins anew then.
  if (!whole || !pages->WaitAll().ok()) result.layers = std::move(pages);
  return result;
}

bool PagodaPrefixCache::Append(PageBuffer& page, client::PageTier tier, KvSequence& sequence,
                               PrefixHit& result) {
  const int64_t index = sequence.full_page_count();
  const Precision precision = PrecisionOf(page.header().planes);
  // What was found at q8 may have lost its lo planes since.
  const Precision needed = sequence.UsablePrecision(index, announced_tokens_);
  if (precision < needed) {
    Note(absl::AbortedError(absl::StrCat("page ", index, " came at ", PrecisionName(precision),
                                         ", ", PrecisionName(needed), " was found")));
    return false;
  }
  const Precision fidelity = page.header().fidelity;
  const int64_t bytes = page.header().stored_bytes();
  if (absl::Status status = sequence.AppendLoaded(std::move(page), fidelity); !status.ok()) {
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
  client::PushItem item;
  item.scope = info_->id;
  item.key = keys_[index];
  item.parent = index == 0 ? info_->root : keys_[index - 1];
  item.parent_is_root = index == 0;
  item.token_ids.assign(page_ids.begin(), page_ids.end());
  item.base_position = static_cast<uint64_t>(page_index * sequence.page_tokens());
  item.fidelity = sequence.fidelity(page_index);
  item.segments.assign(raw->segments().begin(), raw->segments().end());
  client::MoveToReserved(*pusher_, item);  // the sequence may change its own
  for (const ByteSpan segment : item.segments) item.segment_crc32c.push_back(Crc32c(segment));
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
