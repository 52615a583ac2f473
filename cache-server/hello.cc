#include "cache-server/hello.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache-server/request_fields.h"
#include "cache-server/version.h"
#include "proto/wire.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr std::array<uint32_t, 4> kPageTokens = {32, 64, 128, 256};

absl::Status CheckPageTokens(uint32_t page_tokens, bool opaque) {
  if (opaque && page_tokens >= 1 && page_tokens <= kOpaqueTokensMax) return absl::OkStatus();
  if (std::find(kPageTokens.begin(), kPageTokens.end(), page_tokens) != kPageTokens.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("page_tokens: is %d, expected %s", page_tokens,
                      opaque ? absl::StrCat("1 to ", kOpaqueTokensMax) : "32, 64, 128 or 256"));
}

absl::Status CheckVersions(const v1::HelloRequest& request) {
  const uint32_t min = request.protocol_version_min();
  const uint32_t max = request.protocol_version_max();
  if (min == 0 || max < min) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "protocol_version_min, _max: are %d and %d, expected 1 or more and in order", min, max));
  }
  if (min > kProtocolVersion || max < kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "client speaks protocol versions %d to %d, this server %d; use a client of that version",
        min, max, kProtocolVersion));
  }
  const std::string& answer = request.known_answer();
  if (!answer.empty() && absl::string_view(answer) != KnownAnswer().view()) {
    return absl::FailedPreconditionError(
        "known_answer differs from ours: client and server would never find each other's keys; "
        "use a client built from the same version");
  }
  return absl::OkStatus();
}

void FillLimits(const ServerOptions& options, v1::Limits& limits) {
  limits.set_batch_pages_max(options.limits.batch_pages_max);
  limits.set_control_message_bytes_max(
      static_cast<uint64_t>(options.limits.control_message_bytes_max));
  limits.set_piece_message_bytes_max(static_cast<uint64_t>(options.limits.piece_message_bytes_max));
  limits.set_sessions_max(options.limits.sessions_max);
  limits.set_leases_per_session_max(options.limits.leases_per_session_max);
  limits.set_sequences_per_session_max(options.limits.sequences_per_session_max);
  limits.set_staged_pages_per_session_max(options.limits.staged_pages_per_session_max);
  limits.set_lease_seconds(absl::ToDoubleSeconds(options.lease));
  limits.set_heartbeat_seconds(absl::ToDoubleSeconds(options.heartbeat));
  limits.set_session_timeout_seconds(absl::ToDoubleSeconds(options.session_timeout));
}

void FillCapabilities(const ServiceContext& context, v1::Capabilities& capabilities) {
  if (!context.shm_socket.empty()) {
    if (context.hbm != nullptr) capabilities.add_data_planes("cuda");
    capabilities.add_data_planes("shm");
  }
  if (context.peers != nullptr) capabilities.add_data_planes("nccl");
  capabilities.add_data_planes("grpc");
  for (const auto precision : {v1::PRECISION_Q2, v1::PRECISION_Q3, v1::PRECISION_Q4,
                               v1::PRECISION_Q8, v1::PRECISION_RAW16, v1::PRECISION_OPAQUE}) {
    capabilities.add_precisions(precision);
  }
  for (const auto kind : {v1::PLANE_KIND_CODES, v1::PLANE_KIND_RAW16, v1::PLANE_KIND_RAW_ROWS,
                          v1::PLANE_KIND_OPAQUE}) {
    capabilities.add_plane_kinds(kind);
  }
  if (context.hbm != nullptr) capabilities.add_tiers(v1::TIER_HBM);
  capabilities.add_tiers(v1::TIER_HOST);
  if (context.store.has_ssd()) capabilities.add_tiers(v1::TIER_SSD);
  for (const uint32_t tokens : kPageTokens) capabilities.add_page_tokens(tokens);
}

absl::Status FillModel(ServiceContext& context, const Caller& caller,
                       const v1::HelloRequest& request, v1::HelloResponse& response) {
  PAGODA_ASSIGN_OR_RETURN(const ModelSpec spec, FromWire(request.model()));
  const Identity identity = IdentityOf(spec);
  const bool is_new = !context.models.Find(identity).has_value();
  PAGODA_ASSIGN_OR_RETURN(const Precision ladder,
                          context.models.Announce(identity, spec, response.page_tokens()));
  if (is_new) {
    LogInfo("model_announced", {{"model", spec.model},
                                {"identity", identity.hex().substr(0, 16)},
                                {"ladder", std::string(PrecisionName(ladder))},
                                {"tenant", caller.tenant()}});
  }
  response.set_identity(std::string(identity.view()));
  response.set_ladder(ToWire(ladder));
  for (int i = 0; i < response.scopes_size(); ++i) {
    const CallerScope& scope = caller.scopes()[static_cast<size_t>(i)];
    const PageKey root = RootOf(identity, scope.scope.kind, scope.secret);
    response.mutable_scopes(i)->set_root(std::string(root.view()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AnswerHello(ServiceContext& context, const Caller& caller,
                         const v1::HelloRequest& request, v1::HelloResponse& response) {
  PAGODA_RETURN_IF_ERROR(CheckVersions(request));
  const uint32_t page_tokens =
      request.page_tokens() == 0 ? context.options.page_tokens : request.page_tokens();
  PAGODA_RETURN_IF_ERROR(CheckPageTokens(
      page_tokens, request.has_model() && request.model().kv_dtype() == v1::KV_DTYPE_OPAQUE));
  response.set_page_tokens(page_tokens);
  for (const CallerScope& scope : caller.scopes()) {
    v1::ScopeInfo& info = *response.add_scopes();
    info.set_kind(ToWire(scope.scope.kind));
    info.set_name(scope.scope.name);
    info.set_scope_id(std::string(scope.id.view()));
    info.set_may_push(scope.may_push);
  }
  if (request.has_model()) {
    PAGODA_RETURN_IF_ERROR(FillModel(context, caller, request, response));
  }
  response.set_protocol_version(kProtocolVersion);
  response.set_server_version(kVersion);
  response.set_instance_id(context.instance_id);
  response.set_tenant(caller.tenant());
  response.set_known_answer(std::string(KnownAnswer().view()));
  response.set_shm_socket(context.shm_socket);
  FillLimits(context.options, *response.mutable_limits());
  FillCapabilities(context, *response.mutable_capabilities());
  return absl::OkStatus();
}

}  // namespace pagoda
