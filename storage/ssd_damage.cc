#include "storage/ssd_damage.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

constexpr char kPayload[] = "pagoda/integrity";

}  // namespace

absl::Status SsdDamage(IntegrityKind kind, absl::string_view text) {
  return WithIntegrityKind(absl::DataLossError(absl::StrCat("ssd: ", text)), kind);
}

absl::Status WithIntegrityKind(absl::Status status, IntegrityKind kind) {
  if (status.code() == absl::StatusCode::kDataLoss) {
    status.SetPayload(kPayload, absl::Cord(std::string(1, static_cast<char>(kind))));
  }
  return status;
}

IntegrityKind IntegrityKindOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value() || payload->size() != 1) return IntegrityKind::kSegment;
  return static_cast<IntegrityKind>(std::string(*payload)[0]);
}

}  // namespace pagoda
