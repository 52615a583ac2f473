// K and V of one sequence, in pages: raw16 while they are in the window or under construction,
// encoded once they have left it. It says which form a query reads; computing K and V is
// forward_pass.h, keeping them beyond the sequence is prefix_cache.h.
//
// Reading    queries of page P (positions [P * page, (P + 1) * page)) read page p encoded if and
//            only if the precision is below raw16 and (p + 1) * page <= P * page - window; a page
//            that codes cannot hold (infinities) stays raw. With q8_tokens below q8, encoded pages
//            within that distance are read at q8: a ladder of three steps by age in the sequence,
//            over one encoding. What a query reads is so a function of its position alone, not of
//            how a prompt was cut into chunks. The first kSinkTokens tokens stay exact inside the
//            encoded page 0.
// Loaded     pages may arrive encoded. In the window they are read at all their bits (q8), beyond
//            it at the precision of the sequence.
// Profile    at q4 K is read with its lo plane in k_lo_layers. A page from elsewhere that lacks one
//            of these planes is refused; what it has beyond them is not read: the same bytes
//            wherever a page comes from.
// Fidelity   of a page: the lowest precision at which any earlier K and V was read while it was
//            computed, that of the read pages included.
// Units      tokens, pages, bytes           Threads  one at a time
// Ownership  owns all pages. Tiles and spans live until the next non-const call.
// Errors     see the methods. Limits  2^24 tokens
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/worker/page_buffer.h"
#include "client/worker/thread_pool.h"
#include "kernels/page_view.h"
#include "storage/base/precision.h"

namespace pagoda {

struct KvOptions {
  Precision precision = Precision::kRaw16;  // one of kStoredPrecisions
  int64_t window_tokens = 256;              // most recent tokens kept raw; >= 0
  int64_t token_count_max = 8192;           // the sequence's limit, usually the model's context
  // Below q8 only: most recent tokens that are read at q8 at least. 0, or within the window: none.
  // Pages that were computed over that alone are loaded all the same: their fidelity is that.
  int64_t q8_tokens = 0;
  std::vector<int32_t> k_lo_layers = {};  // of the model's layer profile; used at q4 alone
};

class KvSequence {
 public:
  // INVALID_ARGUMENT for a shape that pages cannot have, or options out of range.
  static absl::StatusOr<KvSequence> Make(const kernels::PageShape& shape, double rope_theta,
                                         const KvOptions& options);
  KvSequence(KvSequence&&) = default;
  KvSequence& operator=(KvSequence&&) = default;

  const kernels::PageShape& shape() const { return shape_; }
  const KvOptions& options() const { return options_; }
  int64_t page_tokens() const { return shape_.page_tokens; }
  int64_t token_count() const { return token_count_; }
  // Complete pages, whose K and V are final; a tail of fewer tokens is not counted.
  int64_t full_page_count() const { return token_count_ / page_tokens(); }

  // Pages that queries of page `query_page` read encoded: [0, result).
  int64_t EncodedPageCount(int64_t query_page) const;
  // Of them those at the sequence's own precision; [result, EncodedPageCount()) are read at q8.
  int64_t AgedPageCount(int64_t query_page) const;
  // Pages that one chunk of prefill may compute at once, at most `page_count_max`: none of them may
  // be read encoded by another.
  int64_t ChunkPagesMax(int64_t page_count_max) const;

  // ---- Pages from a cache
  // How many of the leading pages, which a cache has at these precisions, a prompt may use: all of
  // them at the sequence's precision or better, those that the first token after the prompt does
  // not read at that precision at q8 or better (raw16 for a raw16 sequence), and at least one
  // prompt token left over. What the result leaves out is recomputed.
  int64_t UsablePages(absl::Span<const Precision> precisions, int64_t prompt_tokens) const;
  // What page `page_index` must have at least to be one of them.
  Precision UsablePrecision(int64_t page_index, int64_t prompt_tokens) const;
  // Memory for a page, to be filled in and handed to AppendLoaded().
  PageBuffer NewPage(int64_t page_index, Precision precision) const;
  // Appends a full page. INVALID_ARGUMENT when it is not the next one, below the sequence's
  // precision, of a shape or tables that cannot be read, lacks K lo in a layer of the profile, or
  // when its fidelity is below the
  // sequence's precision; the sequence is unchanged then. REQUIRES: a whole number of pages so far.
  // On error the page stays the caller's: others may still write into it.
  absl::Status AppendLoaded(PageBuffer&& page, Precision fidelity);

  // ---- Writing
  // Before queries of pages [first, last] are computed: makes raw memory for those pages, encodes
  // what they read encoded, and frees what neither they nor later queries read.
  // REQUIRES: first == token_count() / page_tokens() <= last; last - first < ChunkPagesMax(...).
  void Prepare(int64_t first_query_page, int64_t last_query_page, ThreadPool& pool);
  // Rows of a page under construction: [page_tokens][head_dim] bf16 each.
  struct RawRows {
    uint16_t* k;
    uint16_t* v;
  };
  RawRows MutableRows(int64_t page_index, int32_t layer, int32_t head);
  // K and V of tokens up to `token_count` are written. REQUIRES: not less than token_count(), and
  // pages prepared.
  void Advance(int64_t token_count);
  // Forgets the tokens from `token_count` on, to compute them again. REQUIRES: their pages are raw.
  void Rewind(int64_t token_count);

  // ---- Reading
  // The tiles that queries of page `query_page` read, themselves included, `token_count` of them in
  // the last page; appended to `tiles`, which is cleared first.
  void CollectTiles(int64_t query_page, int32_t token_count, int32_t layer, int32_t head,
                    std::vector<kernels::PageTile>* tiles) const;
  // Of them those of pages [page_begin, page_end). REQUIRES: page_begin <= query_page.
  void CollectTiles(int64_t query_page, int32_t token_count, int32_t layer, int32_t head,
                    int64_t page_begin, int64_t page_end,
                    std::vector<kernels::PageTile>* tiles) const;
  // Of a page that was computed here or loaded; see the header.
  Precision fidelity(int64_t page_index) const { return pages_[page_index].fidelity; }
  // The raw16 form of a page, or null when it has been given up for the encoded one.
  const PageBuffer* raw_page(int64_t page_index) const { return pages_[page_index].raw.get(); }
  const PageBuffer* encoded_page(int64_t page_index) const {
    return pages_[page_index].encoded.get();
  }

  // Bytes of all pages as they stand, headers, padding and the whole of the last page counted.
  int64_t stored_bytes() const;
  // Beside them: codes of q3 and q2 widened for reading.
  int64_t widened_bytes() const;
  // The most that both were so far: while pages leave the window they are there in two forms.
  int64_t peak_bytes() const { return peak_bytes_; }
  // What a token takes in raw16, without any padding.
  int64_t raw16_bytes_per_token() const;

 private:
  struct Page {
    std::unique_ptr<PageBuffer> raw;
    std::unique_ptr<PageBuffer> encoded;
    std::unique_ptr<PageBuffer> aged;  // what q3 or q2 reads of a richer `encoded`; else null
    std::optional<kernels::PageView> raw_view;
    std::optional<kernels::PageView> full_view;  // of `encoded`, at all its bits
    // At the sequence's precision; at q3 and q2 nothing, until a richer page has aged.
    std::optional<kernels::PageView> mode_view;
    Precision fidelity = Precision::kRaw16;
    bool codes_cannot_hold = false;
  };

  KvSequence(const kernels::PageShape& shape, double rope_theta, const KvOptions& options)
      : shape_(shape), rope_theta_(rope_theta), options_(options) {}
  // Of the profile, which is for q4.
  kernels::KLoLayers KLoLayers() const {
    if (options_.precision != Precision::kQ4) return {};
    return options_.k_lo_layers;
  }
  bool encodes() const { return options_.precision != Precision::kRaw16; }
  // What pages are encoded to when they leave the window.
  Precision encoded_precision() const {
    return options_.q8_tokens > options_.window_tokens ? Precision::kQ8 : options_.precision;
  }
  int64_t PagesBefore(int64_t query_page, int64_t recent_tokens) const;
  const kernels::PageView& ViewFor(int64_t page_index, int64_t query_page) const;
  Precision FidelityOf(int64_t query_page) const;
  absl::Status SetEncoded(Page& page, std::unique_ptr<PageBuffer>& encoded);  // taken if well
  void EncodePages(int64_t page_count, ThreadPool& pool);
  void EncodeHere(Page& page);
  void CutPages(int64_t page_count, ThreadPool& pool);
  void CutHere(Page& page);
  void FreeRaw(int64_t page_count);
  void FreeLo(int64_t page_count);

  kernels::PageShape shape_;
  double rope_theta_;
  KvOptions options_;
  int64_t token_count_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t freed_page_count_ = 0;  // pages [0, this) are raw no more
  int64_t aged_page_count_ = 0;   // pages [0, this) have no lo planes that nobody reads
  std::vector<Page> pages_;
};

}  // namespace pagoda
