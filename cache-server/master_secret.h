// The 32 bytes from which every scope's secret is made. Pages pushed under one master secret are
// never found under another: a fleet shares one file, a lost file means an empty cache.
//
// Errors  FAILED_PRECONDITION  others may read the file, or it is not exactly 32 bytes
//         NOT_FOUND            the file is absent and may not be made
//         UNAVAILABLE          the file cannot be read or written
// Messages name the file, the cause and the remedy; never a byte of the secret.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace pagoda {

constexpr size_t kMasterSecretBytes = 32;

// An existing file, as given by the configuration.
absl::StatusOr<std::string> ReadMasterSecret(const std::string& path);

// The file in the data folder: made with random bytes and mode 0600 at the first start. Safe
// against two daemons starting at once: one makes it, both read the same.
absl::StatusOr<std::string> ReadOrMakeMasterSecret(const std::string& path);

}  // namespace pagoda
