// Which pages matter to a query, told from digests of their keys without reading the pages.
//
// A digest keeps, for each 16 tokens of one layer and kv head, rows of head_dim bf16 words:
//   quest    low and high: the least and the greatest key of each channel
//   centre   low and high: their middle, minus and plus the mean distance of the keys from it
//   mean     the mean key
// A score is, per query head and 16 tokens,
//   quest, centre   sum_c max(q_c * low_c, q_c * high_c)          mean   sum_c q_c * mean_c
//
// Bound      The score of a quest digest is never below q . k of any of its tokens, computed
//            exactly from the q given and the keys as DecodeTileRef() reads them from the tile that
//            the digest was built from. Words round outward, extremes are widened by what decoding
//            in float may err, and sums by what they may have rounded off. It promises nothing
//            about keys of the same page at another precision: build from the lowest that is read.
//            Products of magnitude below 2^-126 are not covered: each may be missed by so much.
//            The others estimate; they bound nothing.
// Frame      Keys after RoPE, not rotated. Models keep a few loud channels apart; rotating would
//            spread them over all, and a box is loosest where all sides are long. Keys of raw16
//            pages are bf16, so that their extremes are exact, and a query shifted by
//            position_shift.h meets the same digest.
// Units      q . k before the softmax scale. 16 tokens: with larger units boxes grow loose and
//            select badly, whatever the size of a page.
// Errors     INVALID_ARGUMENT  not a digest, shape or counts outside their limits, null pointers.
//            Keys and q are finite, or scores are not.
// Threads    pure functions
// Ordering   ScorePagesCpu is within (2 * head_dim + 8) * 2^-24 * sum_c |q_c| * max(|low_c|,
//            |high_c|) of Ref. BuildDigestCpu gives the words of Ref for quest digests of raw16
//            tiles; elsewhere words may differ by 2^-8 of a word and 2^-11 of the
//            tile's greatest value.
// Source     Tang et al., Quest (arXiv:2406.10774); Chen et al., ArkVale (NeurIPS 2024)
// Cost       Score: 4 * head_dim bytes (mean: 2) per 16 tokens. Build: decoding the tile.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/page_view.h"

namespace pagoda::kernels {

// Writes the digest of one tile: TileBytesOf(digest, shape) bytes, 2-byte aligned. Words of tokens
// past token_count are 0.
absl::Status BuildDigestRef(PlaneId digest, const PageTile& tile, const PageShape& shape,
                            uint16_t* words);
absl::Status BuildDigestCpu(PlaneId digest, const PageTile& tile, const PageShape& shape,
                            uint16_t* words);

struct DigestTile {
  const uint16_t* words = nullptr;
  int32_t token_count = 0;
};

struct PageScoreParams {
  PlaneId digest = PlaneId::kQuestDigest;
  const float* q = nullptr;  // [group_count][head_dim], after RoPE, not rotated
  int32_t group_count = 0;   // 1 to 64 query heads of the kv head
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  absl::Span<const DigestTile> tiles;
  float* scores = nullptr;  // [group][tile][page_tokens / 16], written; -inf where no token is
};

absl::Status ScorePagesRef(const PageScoreParams& params);
absl::Status ScorePagesCpu(const PageScoreParams& params);

// Shared by the twins.
absl::Status ValidatePageScore(const PageScoreParams& params);
absl::Status ValidateDigest(PlaneId digest, const PageTile& tile, const PageShape& shape,
                            const uint16_t* words);

}  // namespace pagoda::kernels
