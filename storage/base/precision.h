// Precisions of stored K and V, and the kinds of planes that pages are made of.
// Enumerators carry the numbers of proto/pagoda/v1/cache.proto and of the page header.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda {

// The value is the bits per element, so that a greater one is a more exact one. kOpaque is an
// engine's own bytes, unmodified: as exact as it gets.
enum class Precision : uint8_t {
  kNone = 0,
  kQ2 = 2,
  kQ3 = 3,
  kQ4 = 4,
  kQ8 = 8,
  kRaw16 = 16,
  kOpaque = 32,
};

// Those that pages of ours are kept at, the most exact first.
inline constexpr std::array kStoredPrecisions = {Precision::kRaw16, Precision::kQ8, Precision::kQ4,
                                                 Precision::kQ3, Precision::kQ2};

enum class PlaneKind : uint8_t {
  kCodes = 1,    // a bit range of the embedded code, with the scales of that rate
  kRaw16 = 2,    // bf16 as produced
  kRawRows = 3,  // bf16 of a few rows of an encoded page (the attention sinks)
  kDigestQuest = 4,
  kDigestCentre = 5,
  kDigestMean = 6,
  kDigestSketch = 7,
  kPositions = 8,
  kCounts = 9,
  kState = 10,
  kOpaque = 11,
};
constexpr uint8_t kPlaneKindMax = 11;

enum class Tensor : uint8_t { kBoth = 0, kK = 1, kV = 2 };

// "raw16", "q8", ... as in metrics, flags and JSON.
absl::string_view PrecisionName(Precision precision);
// Of kStoredPrecisions. INVALID_ARGUMENT names the accepted words.
absl::StatusOr<Precision> ParsePrecision(absl::string_view name);
// True for the values listed above; bytes from outside may hold anything.
bool IsKnownPrecision(uint8_t value);

absl::string_view PlaneKindName(PlaneKind kind);

}  // namespace pagoda
