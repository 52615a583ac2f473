// Which of a daemon's models a word on the command line means.
//
// Threads  pure function
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "pagoda/v1/admin.pb.h"

namespace pagoda::cli {

// "all" is every model: an empty identity. Otherwise the model of that name, or the one whose
// identity begins with that hex text of at least 6 digits. A name wins over an identity.
//   NOT_FOUND         no such model; names those there are
//   INVALID_ARGUMENT  more than one; names their identities
absl::StatusOr<std::string> ChooseModel(const std::string& word,
                                        absl::Span<const v1::ModelStatus> models);

}  // namespace pagoda::cli
