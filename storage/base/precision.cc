#include "storage/base/precision.h"

#include "absl/strings/str_cat.h"

namespace pagoda {

absl::string_view PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kNone:
      return "none";
    case Precision::kQ2:
      return "q2";
    case Precision::kQ3:
      return "q3";
    case Precision::kQ4:
      return "q4";
    case Precision::kQ8:
      return "q8";
    case Precision::kRaw16:
      return "raw16";
    case Precision::kOpaque:
      return "opaque";
  }
  return "unknown";
}

absl::StatusOr<Precision> ParsePrecision(absl::string_view name) {
  for (const Precision p : kStoredPrecisions) {
    if (name == PrecisionName(p)) return p;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("precision '", name, "' is unknown; use raw16, q8, q4, q3 or q2"));
}

bool IsKnownPrecision(uint8_t value) {
  switch (static_cast<Precision>(value)) {
    case Precision::kQ2:
    case Precision::kQ3:
    case Precision::kQ4:
    case Precision::kQ8:
    case Precision::kRaw16:
    case Precision::kOpaque:
      return true;
    case Precision::kNone:
      return false;
  }
  return false;
}

absl::string_view PlaneKindName(PlaneKind kind) {
  switch (kind) {
    case PlaneKind::kCodes:
      return "codes";
    case PlaneKind::kRaw16:
      return "raw16";
    case PlaneKind::kRawRows:
      return "raw_rows";
    case PlaneKind::kDigestQuest:
      return "digest_quest";
    case PlaneKind::kDigestCentre:
      return "digest_centre";
    case PlaneKind::kDigestMean:
      return "digest_mean";
    case PlaneKind::kDigestSketch:
      return "digest_sketch";
    case PlaneKind::kPositions:
      return "positions";
    case PlaneKind::kCounts:
      return "counts";
    case PlaneKind::kState:
      return "state";
    case PlaneKind::kOpaque:
      return "opaque";
  }
  return "unknown";
}

}  // namespace pagoda
