// The file that names callers:
//
//   tokens:
//     - {token: "...", tenant: acme, groups: [legal], publish: true, admin: false, push: true}
//
// token   16 to 512 visible characters; unique     tenant, groups   letters, digits, . _ -
// publish may push into the public scope (default false)   admin  may call Admin (default false)
// push    may push at all (default true): a reader only looks up and fetches
//
// Errors  INVALID_ARGUMENT     file, key path, value, what is accepted; a token itself is never
// shown
//         FAILED_PRECONDITION  others may read the file; the remedy is chmod 600
//         NOT_FOUND            no such file
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace pagoda {

struct TokenEntry {
  std::string token;
  std::string tenant;
  std::vector<std::string> groups;
  bool publish = false;
  bool admin = false;
  bool push = true;
};

// At least one entry, at most 10000.
absl::StatusOr<std::vector<TokenEntry>> ReadTokenFile(const std::string& path);

}  // namespace pagoda
