#include "cache-server/caller.h"

#include <openssl/crypto.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

constexpr char kAuthorization[] = "authorization";
constexpr absl::string_view kBearer = "Bearer ";

CallerScope MakeScope(ScopeKind kind, const std::string& name, absl::string_view master_secret,
                      bool may_push) {
  const Scope scope{kind, name};
  return {scope, ScopeIdOf(scope), ScopeSecretOf(master_secret, scope), may_push};
}

}  // namespace

Caller::Caller(const TokenEntry& entry, absl::string_view master_secret)
    : tenant_(entry.tenant), is_admin_(entry.admin) {
  const Sha256Digest digest = Sha256(entry.tenant);
  std::memcpy(pusher_.bytes.data(), digest.data(), pusher_.bytes.size());
  scopes_.push_back(MakeScope(ScopeKind::kPrivate, entry.tenant, master_secret, entry.push));
  for (const std::string& group : entry.groups) {
    scopes_.push_back(MakeScope(ScopeKind::kGroup, group, master_secret, entry.push));
  }
  scopes_.push_back(MakeScope(ScopeKind::kPublic, "", master_secret, entry.push && entry.publish));
}

absl::StatusOr<const CallerScope*> Caller::ScopeById(const ScopeId& id) const {
  for (const CallerScope& scope : scopes_) {
    if (scope.id == id) return &scope;
  }
  return absl::PermissionDeniedError(absl::StrCat("tenant ", tenant_, " has no right to scope ",
                                                  id.hex(), "; Hello lists its scopes"));
}

CallerTable::CallerTable(const std::vector<TokenEntry>& entries, absl::string_view master_secret) {
  if (entries.empty()) {
    TokenEntry local;
    local.tenant = "local";
    local.publish = true;
    local.admin = true;
    local_ = std::make_shared<const Caller>(local, master_secret);
    return;
  }
  for (const TokenEntry& entry : entries) {
    known_.push_back({Sha256(entry.token), std::make_shared<const Caller>(entry, master_secret)});
  }
}

absl::StatusOr<CallerPtr> CallerTable::Identify(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) const {
  if (local_ != nullptr) return local_;
  const auto found = metadata.find(kAuthorization);
  if (found == metadata.end()) {
    return absl::UnauthenticatedError("no token; send metadata authorization: Bearer TOKEN");
  }
  absl::string_view value(found->second.data(), found->second.size());
  if (!absl::StartsWithIgnoreCase(value, kBearer)) {
    return absl::UnauthenticatedError("authorization is not of the form: Bearer TOKEN");
  }
  value.remove_prefix(kBearer.size());
  // Hashes of all entries are compared in constant time, so that the time of an answer tells
  // nothing of how much of a token was right, nor which entry it was near.
  const Sha256Digest hash = Sha256(value);
  CallerPtr caller;
  for (const Known& known : known_) {
    if (CRYPTO_memcmp(known.token_hash.data(), hash.data(), hash.size()) == 0) {
      caller = known.caller;
    }
  }
  if (caller == nullptr) return absl::UnauthenticatedError("the token is unknown");
  return caller;
}

}  // namespace pagoda
