#include "client/messages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

absl::StatusOr<ScopeInfo> ScopeFromWire(const v1::ScopeInfo& wire) {
  ScopeInfo info;
  info.scope = {static_cast<ScopeKind>(wire.kind()), wire.name()};
  PAGODA_ASSIGN_OR_RETURN(info.id, ScopeId::FromBytes(wire.scope_id()));
  PAGODA_ASSIGN_OR_RETURN(info.root, PageKey::FromBytes(wire.root()));
  info.may_push = wire.may_push();
  return info;
}

}  // namespace

absl::StatusOr<ServerInfo> ServerInfoFromWire(const v1::HelloResponse& hello, bool with_model) {
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the daemon speaks protocol %d, this client speaks %d: update the older",
                        hello.protocol_version(), kProtocolVersion));
  }
  if (hello.known_answer() != Bytes(KnownAnswer())) {
    return absl::FailedPreconditionError("the daemon hashes page keys in another way");
  }
  ServerInfo info;
  info.version = hello.server_version();
  info.instance_id = hello.instance_id();
  info.tenant = hello.tenant();
  info.page_tokens = hello.page_tokens();
  info.batch_pages_max = hello.limits().batch_pages_max();
  info.shm_socket = hello.shm_socket();
  if (!with_model) return info;
  PAGODA_ASSIGN_OR_RETURN(info.identity, Identity::FromBytes(hello.identity()));
  PAGODA_ASSIGN_OR_RETURN(info.ladder, FromWire(hello.ladder(), Precision::kNone));
  for (const v1::ScopeInfo& wire : hello.scopes()) {
    PAGODA_ASSIGN_OR_RETURN(ScopeInfo scope, ScopeFromWire(wire));
    info.scopes.push_back(std::move(scope));
  }
  return info;
}

void FillPart(const PagePart& part, v1::Part& wire) {
  wire.set_group(part.group);
  wire.set_head_begin(part.head_begin);
  wire.set_head_count(part.head_count);
}

void FillChains(absl::Span<const ScopeChain> chains,
                google::protobuf::RepeatedPtrField<v1::KeyChain>& wire) {
  for (const ScopeChain& chain : chains) {
    v1::KeyChain& target = *wire.Add();
    target.set_scope_id(Bytes(chain.scope));
    for (const PageKey& key : chain.keys) target.add_keys(Bytes(key));
  }
}

absl::StatusOr<LookupResult> LookupResultFromWire(const v1::LookupResponse& response,
                                                  const LookupQuery& query,
                                                  absl::Duration asked_at) {
  LookupResult result;
  if (response.chain_index() < query.chains.size()) {
    if (static_cast<size_t>(response.pages_size()) >
        query.chains[response.chain_index()].keys.size() *
            std::max<size_t>(1, query.parts.size())) {
      return absl::DataLossError("lookup: more pages than keys");
    }
  } else if (response.pages_size() > 0) {
    return absl::DataLossError("lookup: an unknown chain");
  }
  if (!response.lease_id().empty()) {
    PAGODA_ASSIGN_OR_RETURN(result.lease, LeaseId::FromBytes(response.lease_id()));
  }
  // The lease ends here first: a tenth of it, at least, is margin.
  result.lease_until = asked_at + absl::Seconds(response.lease_seconds() * 0.9);
  result.chain_index = response.chain_index();
  result.parts = query.parts;
  if (result.parts.empty()) result.parts.push_back(query.part);
  for (const v1::PageInfo& page : response.pages()) {
    PAGODA_ASSIGN_OR_RETURN(const Precision precision,
                            FromWire(page.precision(), Precision::kNone));
    PAGODA_ASSIGN_OR_RETURN(const Precision fidelity, FromWire(page.fidelity(), Precision::kNone));
    result.pages.push_back({page.state() == v1::PAGE_STATE_LOADING,
                            static_cast<PageTier>(page.tier()), precision, fidelity,
                            static_cast<int64_t>(page.bytes())});
  }
  return result;
}

v1::PushRequest PushPageMessage(const PushConfig& config, const PushItem& item) {
  v1::PushRequest request;
  v1::PushPage& page = *request.mutable_page();
  page.set_scope_id(item.scope.bytes.data(), item.scope.bytes.size());
  page.set_identity(config.identity.bytes.data(), config.identity.bytes.size());
  page.mutable_part()->set_group(item.part.group);
  page.mutable_part()->set_head_begin(item.part.head_begin);
  page.mutable_part()->set_head_count(item.part.head_count);
  page.set_key(item.key.bytes.data(), item.key.bytes.size());
  page.set_parent(item.parent.bytes.data(), item.parent.bytes.size());
  page.set_parent_is_root(item.parent_is_root);
  for (const uint32_t id : item.token_ids) page.add_token_ids(id);
  page.set_page_tokens(config.page_tokens);
  page.set_base_position(item.base_position);
  page.set_precision(ToWire(item.precision));
  page.set_opaque_layer_bytes(item.opaque_layer_bytes);
  page.set_fidelity(ToWire(item.fidelity));
  for (const uint32_t crc : item.segment_crc32c) page.add_segment_crc32c(crc);
  page.set_backend_tag(config.backend_tag);
  return request;
}

v1::PushRequest PushMessage(const PushConfig& config, const PushItem& item) {
  v1::PushRequest request = PushPageMessage(config, item);
  if (!config.sequence.is_zero()) request.set_sequence_id(Bytes(config.sequence));
  return request;
}

v1::HelloRequest HelloMessage(const ClientOptions& options) {
  v1::HelloRequest request;
  request.set_protocol_version_min(kProtocolVersion);
  request.set_protocol_version_max(kProtocolVersion);
  request.set_client_name(options.client_name);
  request.set_page_tokens(options.page_tokens);
  request.set_known_answer(Bytes(KnownAnswer()));
  request.set_backend_tag(options.backend_tag);
  if (options.model.has_value()) *request.mutable_model() = ToWire(*options.model);
  return request;
}

v1::ReportRequest TtftMessage(const std::string& session_id, const Identity& identity,
                              const SequenceId& sequence, double seconds, uint32_t prompt_tokens,
                              uint32_t hit_tokens) {
  v1::ReportRequest request;
  request.set_session_id(session_id);
  if (!sequence.is_zero()) request.set_sequence_id(Bytes(sequence));
  request.set_identity(Bytes(identity));
  request.set_ttft_seconds(seconds);
  request.set_prompt_tokens(prompt_tokens);
  request.set_hit_tokens(hit_tokens);
  return request;
}

absl::string_view PageTierName(PageTier tier) { return TierName(static_cast<v1::Tier>(tier)); }

}  // namespace pagoda::client
