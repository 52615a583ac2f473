#include "storage/base/scope.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

std::string KindAndName(const Scope& scope) {
  return absl::StrCat(std::string(1, static_cast<char>(scope.kind)), scope.name);
}

}  // namespace

ScopeId ScopeIdOf(const Scope& scope) {
  const Sha256Digest digest = Sha256(absl::StrCat("pagoda/scope/v1", KindAndName(scope)));
  ScopeId id;
  std::copy_n(digest.begin(), id.bytes.size(), id.bytes.begin());
  return id;
}

ScopeSecret ScopeSecretOf(absl::string_view master_secret, const Scope& scope) {
  return ScopeSecret{HmacSha256(master_secret, KindAndName(scope))};
}

absl::string_view ScopeKindName(ScopeKind kind) {
  switch (kind) {
    case ScopeKind::kPrivate:
      return "private";
    case ScopeKind::kGroup:
      return "group";
    case ScopeKind::kPublic:
      return "public";
  }
  return "unknown";
}

std::string ScopeName(const Scope& scope) {
  if (scope.kind == ScopeKind::kPublic) return "public";
  return absl::StrCat(ScopeKindName(scope.kind), ":", scope.name);
}

absl::StatusOr<Scope> ParseScope(absl::string_view text) {
  if (text == "private") return Scope{ScopeKind::kPrivate, ""};
  if (text == "public") return Scope{ScopeKind::kPublic, ""};
  if (absl::StartsWith(text, "group:") && text.size() > 6) {
    return Scope{ScopeKind::kGroup, std::string(text.substr(6))};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("scope '", text, "' is unknown; use private, public or group:NAME"));
}

absl::StatusOr<Scope> ParseNamedScope(absl::string_view text) {
  if (text == "public") return Scope{ScopeKind::kPublic, ""};
  for (const ScopeKind kind : {ScopeKind::kPrivate, ScopeKind::kGroup}) {
    const absl::string_view prefix = ScopeKindName(kind);
    if (text.size() > prefix.size() + 1 && text.substr(0, prefix.size()) == prefix &&
        text[prefix.size()] == ':') {
      return Scope{kind, std::string(text.substr(prefix.size() + 1))};
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("scope '", text, "': expected private:TENANT, group:NAME or public"));
}

}  // namespace pagoda
