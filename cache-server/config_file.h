// The configuration file (deploy/pagodad.example.yaml shows every key). Strict: a mistyped key or
// value is one line that names file, key path, value, what is accepted and the nearest known key.
//
// Errors  NOT_FOUND         no such file
//         INVALID_ARGUMENT  as above; `options` is then partly changed and must not be used
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cache-server/options.h"

namespace pagoda {

// Overwrites what the file sets; relations between fields are left to ServerOptions::Validate().
absl::Status ReadConfigFile(const std::string& path, ServerOptions& options);

}  // namespace pagoda
