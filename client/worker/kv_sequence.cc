#include "client/worker/kv_sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/codec.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int64_t kTokenCountMax = int64_t{1} << 24;

bool IsSequencePrecision(Precision precision) {
  return std::find(kStoredPrecisions.begin(), kStoredPrecisions.end(), precision) !=
         kStoredPrecisions.end();
}

}  // namespace

absl::StatusOr<KvSequence> KvSequence::Make(const kernels::PageShape& shape, double rope_theta,
                                            const KvOptions& options) {
  PAGODA_RETURN_IF_ERROR(kernels::ValidatePageShape(shape));
  if (!IsSequencePrecision(options.precision)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence: precision %s, expected raw16, q8, q4, q3 or q2",
                        PrecisionName(options.precision)));
  }
  if (options.window_tokens < 0 || options.window_tokens > kTokenCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sequence: window of %d tokens, expected 0 to %d", options.window_tokens, kTokenCountMax));
  }
  if (options.token_count_max < 1 || options.token_count_max > kTokenCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sequence: limit of %d tokens, expected 1 to %d", options.token_count_max, kTokenCountMax));
  }
  if (options.q8_tokens < 0 || options.q8_tokens > kTokenCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("sequence: %d tokens at q8, expected 0 to %d",
                                                      options.q8_tokens, kTokenCountMax));
  }
  if (options.q8_tokens > 0 && options.precision >= Precision::kQ8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence: %d tokens at q8 before %s; that is for sequences below q8",
                        options.q8_tokens, PrecisionName(options.precision)));
  }
  PAGODA_RETURN_IF_ERROR(kernels::ValidateKLoLayers(options.k_lo_layers, shape.layer_count));
  return KvSequence(shape, rope_theta, options);
}

int64_t KvSequence::PagesBefore(int64_t query_page, int64_t recent_tokens) const {
  const int64_t recent_pages = (recent_tokens + page_tokens() - 1) / page_tokens();
  return std::max<int64_t>(0, query_page - recent_pages);
}

int64_t KvSequence::EncodedPageCount(int64_t query_page) const {
  return encodes() ? PagesBefore(query_page, options_.window_tokens) : 0;
}

int64_t KvSequence::AgedPageCount(int64_t query_page) const {
  if (!encodes()) return 0;
  return PagesBefore(query_page, std::max(options_.window_tokens, options_.q8_tokens));
}

int64_t KvSequence::ChunkPagesMax(int64_t page_count_max) const {
  if (!encodes()) return page_count_max;
  const int64_t window_pages = (options_.window_tokens + page_tokens() - 1) / page_tokens();
  return std::min(page_count_max, window_pages + 1);
}

int64_t KvSequence::UsablePages(absl::Span<const Precision> precisions,
                                int64_t prompt_tokens) const {
  const auto limit = std::min<int64_t>(static_cast<int64_t>(precisions.size()),
                                       std::max<int64_t>(0, prompt_tokens - 1) / page_tokens());
  for (int64_t page = 0; page < limit; ++page) {
    const Precision needed = UsablePrecision(page, prompt_tokens);
    if (precisions[page] < needed || precisions[page] > Precision::kRaw16) return page;
  }
  return limit;
}

Precision KvSequence::UsablePrecision(int64_t page_index, int64_t prompt_tokens) const {
  if (!encodes()) return Precision::kRaw16;
  const bool aged = page_index < AgedPageCount(prompt_tokens / page_tokens());
  return aged ? options_.precision : Precision::kQ8;
}

PageBuffer KvSequence::NewPage(int64_t page_index, Precision precision) const {
  return PageBuffer(
      MakePageHeader(shape_, rope_theta_, page_index, precision, options_.k_lo_layers));
}

absl::Status KvSequence::AppendLoaded(PageBuffer&& page, Precision fidelity) {
  PAGODA_CHECK(token_count_ % page_tokens() == 0);
  const int64_t index = full_page_count();
  const uint64_t expected_position = static_cast<uint64_t>(token_count_);
  if (page.header().base_position != expected_position) {
    return absl::InvalidArgumentError(absl::StrFormat("sequence: page of position %d, expected %d",
                                                      page.header().base_position,
                                                      expected_position));
  }
  if (token_count_ + page_tokens() > options_.token_count_max) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sequence: page %d goes beyond the limit of %d tokens", index, options_.token_count_max));
  }
  const Precision precision = PrecisionOf(page.header().planes);
  if (!IsSequencePrecision(precision) || precision < options_.precision ||
      fidelity < options_.precision) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sequence: page %d of precision %s and fidelity %s in a sequence of %s", index,
        PrecisionName(precision), PrecisionName(fidelity), PrecisionName(options_.precision)));
  }
  Page loaded;
  loaded.fidelity = fidelity;
  auto buffer = std::make_unique<PageBuffer>(std::move(page));
  absl::Status status;
  if (precision == Precision::kRaw16) {
    absl::StatusOr<kernels::PageView> view =
        kernels::PageView::Make(shape_, buffer->header(), buffer->segments(), Precision::kRaw16);
    status = view.status();
    if (status.ok()) {
      loaded.raw_view = *std::move(view);
      loaded.raw = std::move(buffer);
    }
  } else {
    status = SetEncoded(loaded, buffer);
  }
  if (!status.ok()) {
    page = std::move(*buffer);
    return status;
  }
  pages_.resize(index);  // drops memory prepared for this page
  pages_.push_back(std::move(loaded));
  token_count_ += page_tokens();
  return absl::OkStatus();
}

absl::Status KvSequence::SetEncoded(Page& page, std::unique_ptr<PageBuffer>& encoded) {
  PAGODA_ASSIGN_OR_RETURN(
      kernels::PageView full,
      kernels::PageView::Make(shape_, encoded->header(), encoded->segments(), Precision::kQ8));
  std::optional<kernels::PageView> mode = full;
  if (options_.precision >= Precision::kQ4) {
    PAGODA_ASSIGN_OR_RETURN(mode,
                            kernels::PageView::Make(shape_, encoded->header(), encoded->segments(),
                                                    options_.precision, KLoLayers()));
  } else if (full.precision() > options_.precision) {
    PAGODA_RETURN_IF_ERROR(kernels::PlanCutHeader(encoded->header(), options_.precision).status());
    mode.reset();  // cut once it has aged
  }
  if (mode.has_value() && mode->precision() != options_.precision) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sequence: encoded page reads as %s, needed %s with K lo in %d layers",
        PrecisionName(mode->precision()), PrecisionName(options_.precision), KLoLayers().size()));
  }
  page.full_view = std::move(full);
  page.mode_view = std::move(mode);
  page.encoded = std::move(encoded);
  return absl::OkStatus();
}

void KvSequence::Prepare(int64_t first_query_page, int64_t last_query_page, ThreadPool& pool) {
  PAGODA_CHECK(first_query_page == full_page_count());
  PAGODA_CHECK(first_query_page <= last_query_page);
  const int64_t encoded_count = EncodedPageCount(last_query_page);
  PAGODA_CHECK(encoded_count <= first_query_page);
  while (static_cast<int64_t>(pages_.size()) <= last_query_page) {
    Page page;
    page.raw = std::make_unique<PageBuffer>(
        NewPage(static_cast<int64_t>(pages_.size()), Precision::kRaw16));
    absl::StatusOr<kernels::PageView> view = kernels::PageView::Make(
        shape_, page.raw->header(), page.raw->segments(), Precision::kRaw16);
    PAGODA_CHECK(view.ok());  // our own header and memory
    page.raw_view = *std::move(view);
    pages_.push_back(std::move(page));
  }
  EncodePages(encoded_count, pool);
  CutPages(AgedPageCount(last_query_page), pool);
  peak_bytes_ = std::max(peak_bytes_, stored_bytes() + widened_bytes());
  FreeRaw(EncodedPageCount(first_query_page));
  FreeLo(AgedPageCount(first_query_page));
  for (int64_t page = first_query_page; page <= last_query_page; ++page) {
    pages_[page].fidelity = FidelityOf(page);
  }
}

void KvSequence::EncodePages(int64_t page_count, ThreadPool& pool) {
  std::vector<int64_t> missing;
  for (int64_t index = freed_page_count_; index < page_count; ++index) {
    const Page& page = pages_[index];
    if (page.encoded != nullptr || page.codes_cannot_hold) continue;
    missing.push_back(index);
  }
  pool.ParallelFor(static_cast<int64_t>(missing.size()),
                   [&](int64_t task, int) { EncodeHere(pages_[missing[task]]); });
}

void KvSequence::EncodeHere(Page& page) {
  absl::StatusOr<PageHeader> header =
      kernels::PlanEncodedHeader(page.raw->header(), encoded_precision(), options_.k_lo_layers);
  PAGODA_CHECK(header.ok());
  auto encoded = std::make_unique<PageBuffer>(*std::move(header));
  const absl::Status status =
      kernels::EncodePage(page.raw->header(), page.raw->segments(), encoded->mutable_header(),
                          encoded->mutable_segments());
  if (!status.ok()) {
    // Infinities, NaN, or magnitudes far beyond any model's: it is broken there already, and every
    // run reads the page raw.
    page.codes_cannot_hold = true;
    return;
  }
  PAGODA_CHECK(SetEncoded(page, encoded).ok());
}

void KvSequence::CutPages(int64_t page_count, ThreadPool& pool) {
  std::vector<int64_t> richer;
  for (int64_t index = aged_page_count_; index < page_count; ++index) {
    const Page& page = pages_[index];
    if (page.encoded != nullptr && !page.mode_view.has_value()) richer.push_back(index);
  }
  pool.ParallelFor(static_cast<int64_t>(richer.size()),
                   [&](int64_t task, int) { CutHere(pages_[richer[task]]); });
}

void KvSequence::CutHere(Page& page) {
  absl::StatusOr<PageBuffer> cut = page.encoded->CutTo(options_.precision, {});
  if (!cut.ok()) {  // scales that fewer bits cannot have: as in EncodeHere()
    page.mode_view = page.full_view;
    return;
  }
  page.aged = std::make_unique<PageBuffer>(*std::move(cut));
  absl::StatusOr<kernels::PageView> view =
      kernels::PageView::Make(shape_, page.aged->header(), page.aged->segments(), Precision::kQ4);
  PAGODA_CHECK(view.ok());
  page.mode_view = *std::move(view);
}

void KvSequence::FreeRaw(int64_t page_count) {
  for (; freed_page_count_ < page_count; ++freed_page_count_) {
    Page& page = pages_[freed_page_count_];
    if (page.encoded == nullptr) continue;  // codes_cannot_hold
    page.raw_view.reset();
    page.raw.reset();
  }
}

void KvSequence::FreeLo(int64_t page_count) {
  if (options_.precision >= Precision::kQ8) return;
  for (; aged_page_count_ < page_count; ++aged_page_count_) {
    Page& page = pages_[aged_page_count_];
    if (page.encoded == nullptr) continue;
    if (page.aged != nullptr) {
      page.encoded = std::move(page.aged);
      page.full_view = page.mode_view;
    }
    if (options_.precision < Precision::kQ4) continue;
    const absl::StatusOr<PageHeader> lower =
        kernels::PlanCutHeader(page.encoded->header(), options_.precision, KLoLayers());
    // A page from elsewhere with other tables than ours stays as it is.
    if (!lower.ok() || lower->planes == page.encoded->header().planes) continue;
    absl::StatusOr<PageBuffer> cut = page.encoded->CutTo(options_.precision, KLoLayers());
    if (!cut.ok()) continue;
    auto lower_page = std::make_unique<PageBuffer>(*std::move(cut));
    PAGODA_CHECK(SetEncoded(page, lower_page).ok());
  }
}

const kernels::PageView& KvSequence::ViewFor(int64_t page_index, int64_t query_page) const {
  const Page& page = pages_[page_index];
  if (page.encoded != nullptr) {
    if (page_index < AgedPageCount(query_page)) return *page.mode_view;
    if (page_index < EncodedPageCount(query_page)) return *page.full_view;
  }
  if (page.raw_view.has_value()) return *page.raw_view;
  return *page.full_view;
}

Precision KvSequence::FidelityOf(int64_t query_page) const {
  Precision lowest = Precision::kRaw16;
  for (int64_t page = 0; page < query_page; ++page) {
    lowest = std::min({lowest, pages_[page].fidelity, ViewFor(page, query_page).precision()});
  }
  return lowest;
}

KvSequence::RawRows KvSequence::MutableRows(int64_t page_index, int32_t layer, int32_t head) {
  const kernels::PageTile tile = pages_[page_index].raw_view->tile(layer, head);
  // The view reads our own memory, which PageBuffer hands out as mutable too.
  return {.k = const_cast<uint16_t*>(tile.raw_k), .v = const_cast<uint16_t*>(tile.raw_v)};
}

void KvSequence::Advance(int64_t token_count) {
  PAGODA_CHECK(token_count >= token_count_);
  PAGODA_CHECK(token_count <= static_cast<int64_t>(pages_.size()) * page_tokens());
  token_count_ = token_count;
}

void KvSequence::Rewind(int64_t token_count) {
  PAGODA_CHECK(token_count >= 0);
  PAGODA_CHECK(token_count <= token_count_);
  const int64_t first_page = token_count / page_tokens();
  for (auto page = first_page; page < static_cast<int64_t>(pages_.size()); ++page) {
    PAGODA_CHECK(pages_[page].raw != nullptr);
    PAGODA_CHECK(pages_[page].encoded == nullptr);
  }
  token_count_ = token_count;
}

void KvSequence::CollectTiles(int64_t query_page, int32_t token_count, int32_t layer, int32_t head,
                              std::vector<kernels::PageTile>* tiles) const {
  CollectTiles(query_page, token_count, layer, head, 0, query_page + 1, tiles);
}

void KvSequence::CollectTiles(int64_t query_page, int32_t token_count, int32_t layer, int32_t head,
                              int64_t page_begin, int64_t page_end,
                              std::vector<kernels::PageTile>* tiles) const {
  tiles->clear();
  page_end = std::min(page_end, query_page + 1);
  for (int64_t page = page_begin; page < page_end; ++page) {
    tiles->push_back(ViewFor(page, query_page).tile(layer, head));
  }
  if (page_end == query_page + 1) tiles->back().token_count = token_count;
}

int64_t KvSequence::stored_bytes() const {
  int64_t bytes = 0;
  for (const Page& page : pages_) {
    if (page.raw != nullptr) bytes += page.raw->stored_bytes();
    if (page.encoded != nullptr) bytes += page.encoded->stored_bytes();
    if (page.aged != nullptr) bytes += page.aged->stored_bytes();
  }
  return bytes;
}

int64_t KvSequence::widened_bytes() const {
  int64_t bytes = 0;
  for (const Page& page : pages_) {
    if (page.mode_view.has_value()) bytes += page.mode_view->widened_bytes();
    if (page.encoded == nullptr) continue;
    // Views of one form share what was widened.
    const bool own = page.aged != nullptr || !page.mode_view.has_value();
    if (own) bytes += page.full_view->widened_bytes();
  }
  return bytes;
}

int64_t KvSequence::raw16_bytes_per_token() const {
  return int64_t{2} * 2 * shape_.layer_count * shape_.head_count * shape_.head_dim;
}

}  // namespace pagoda
