// Who calls, and what they may do. A caller comes from the call's metadata, never from a message.
//
// Without a token file every caller is the tenant `local` with all rights; the daemon then listens
// on the loopback interface or a Unix socket only.
//
// Threads    immutable after construction.
// Errors     UNAUTHENTICATED     no token, or an unknown one
//            PERMISSION_DENIED   a scope the caller has no right to
#pragma once

#include <grpcpp/support/string_ref.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "cache-server/token_file.h"
#include "storage/base/model_spec.h"
#include "storage/base/page_header.h"
#include "storage/base/page_key.h"
#include "storage/base/scope.h"

namespace pagoda {

// A scope that a caller may read, and whether it may push into it.
struct CallerScope {
  Scope scope;
  ScopeId id;
  ScopeSecret secret;
  bool may_push = false;
};

class Caller {
 public:
  Caller(const TokenEntry& entry, absl::string_view master_secret);

  const std::string& tenant() const { return tenant_; }
  bool is_admin() const { return is_admin_; }
  const PusherId& pusher() const { return pusher_; }
  // Private, then the groups in the order of the token file, then public: the order of lookups.
  const std::vector<CallerScope>& scopes() const { return scopes_; }
  // PERMISSION_DENIED for every id that is not among them, whether or not such a scope exists.
  absl::StatusOr<const CallerScope*> ScopeById(const ScopeId& id) const;

 private:
  std::string tenant_;
  bool is_admin_;
  PusherId pusher_;  // first 16 bytes of SHA-256 of the tenant's name
  std::vector<CallerScope> scopes_;
};

using CallerPtr = std::shared_ptr<const Caller>;

class CallerTable {
 public:
  // No entries: everybody is `local`.
  CallerTable(const std::vector<TokenEntry>& entries, absl::string_view master_secret);

  absl::StatusOr<CallerPtr> Identify(
      const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) const;

 private:
  struct Known {
    Sha256Digest token_hash;
    CallerPtr caller;
  };
  CallerPtr local_;  // null with a token file
  std::vector<Known> known_;
};

}  // namespace pagoda
