// Who may share a page: a scope is private to a tenant (the default), shared by a group, or public.
// Scopes enter the root of every key chain by a secret, so that a key cannot be guessed from
// tokens; and every record stores its scope id, so that a key alone is not a right.
#pragma once

#include <string>

#include "storage/base/digest.h"

namespace pagoda {

enum class ScopeKind : uint8_t { kPrivate = 1, kGroup = 2, kPublic = 3 };

struct ScopeIdTag;
using ScopeId = DigestId<ScopeIdTag, 16>;  // Public name of a scope; reveals nothing of its secret.
struct ScopeSecretTag;
using ScopeSecret = DigestId<ScopeSecretTag>;

struct Scope {
  ScopeKind kind = ScopeKind::kPrivate;
  std::string name;  // tenant, group, or empty for public
  bool operator==(const Scope&) const = default;
};

// SHA-256("pagoda/scope/v1" | u8 kind | name), its first 16 bytes.
ScopeId ScopeIdOf(const Scope& scope);

// HMAC-SHA256(master secret, u8 kind | name).
ScopeSecret ScopeSecretOf(absl::string_view master_secret, const Scope& scope);

absl::string_view ScopeKindName(ScopeKind kind);  // "private", "group", "public"
std::string ScopeName(const Scope& scope);        // "private:acme", "group:legal", "public"
// The inverse of ScopeName: "private:TENANT", "group:NAME" or "public".
absl::StatusOr<Scope> ParseNamedScope(absl::string_view text);
// "private", "public" or "group:NAME"; for private the name stays empty, the server knows it.
absl::StatusOr<Scope> ParseScope(absl::string_view text);

}  // namespace pagoda
