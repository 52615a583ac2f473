// Damage found on SSD, as a Status that says which kind it is.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "storage/store_observer.h"

namespace pagoda {

// DATA_LOSS that carries `kind`.
absl::Status SsdDamage(IntegrityKind kind, absl::string_view text);
// The same status; if it is a DATA_LOSS, it carries `kind` now.
absl::Status WithIntegrityKind(absl::Status status, IntegrityKind kind);
// What exactly was wrong, of a DATA_LOSS that the SSD tier returned.
IntegrityKind IntegrityKindOf(const absl::Status& status);

}  // namespace pagoda
