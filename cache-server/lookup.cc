#include "cache-server/lookup.h"

#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "cache-server/lease_token.h"
#include "cache-server/request_fields.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr double kHintSecondsMax = 3600;

struct Chain {
  uint32_t scope_index = 0;     // in Caller::scopes()
  std::vector<RecordKey> keys;  // where parts were asked for, each key's parts together
};

struct ParsedChains {
  std::optional<KnownModel> model;  // absent: nothing of it can be stored here
  Identity identity;
  std::vector<Chain> chains;
  size_t longest = 0;  // keys
};

using WireParts = google::protobuf::RepeatedPtrField<v1::Part>;

// What a key stands for: `part`, or each of `parts` where there are any.
absl::StatusOr<std::vector<PartRange>> ParseParts(const v1::Part& part, const WireParts& parts,
                                                  const ModelSpec& spec) {
  std::vector<PartRange> ranges;
  if (parts.empty()) {
    PAGODA_ASSIGN_OR_RETURN(const PartRange range, ParsePart(part, spec));
    ranges.push_back(range);
  }
  for (const v1::Part& wire : parts) {
    PAGODA_ASSIGN_OR_RETURN(const PartRange range, ParsePart(wire, spec));
    ranges.push_back(range);
  }
  return ranges;
}

absl::StatusOr<ParsedChains> ParseChains(
    const ServiceContext& context, const Caller& caller, absl::string_view identity,
    const v1::Part& wire_part, const WireParts& wire_parts,
    const google::protobuf::RepeatedPtrField<v1::KeyChain>& chains) {
  ParsedChains parsed;
  PAGODA_ASSIGN_OR_RETURN(parsed.identity, ParseId<Identity>("identity", identity));
  if (chains.empty()) return absl::InvalidArgumentError("chains: is empty, expected at least one");
  size_t key_count = 0;
  for (const v1::KeyChain& chain : chains) key_count += static_cast<size_t>(chain.keys_size());
  const size_t part_count = std::max<size_t>(1, static_cast<size_t>(wire_parts.size()));
  if (key_count * part_count > context.options.limits.batch_pages_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("chains: hold %d keys of %d parts, batch_pages_max is %d", key_count,
                        part_count, context.options.limits.batch_pages_max));
  }
  parsed.model = context.models.Find(parsed.identity);
  std::vector<PartRange> parts(1);
  if (parsed.model.has_value()) {
    PAGODA_ASSIGN_OR_RETURN(parts, ParseParts(wire_part, wire_parts, parsed.model->spec));
  }
  for (const v1::KeyChain& wire : chains) {
    PAGODA_ASSIGN_OR_RETURN(const ScopeId scope_id,
                            ParseId<ScopeId>("chains.scope_id", wire.scope_id()));
    PAGODA_ASSIGN_OR_RETURN(const CallerScope* scope, caller.ScopeById(scope_id));
    Chain chain;
    chain.scope_index = static_cast<uint32_t>(scope - caller.scopes().data());
    chain.keys.reserve(static_cast<size_t>(wire.keys_size()) * parts.size());
    for (const std::string& key : wire.keys()) {
      PAGODA_ASSIGN_OR_RETURN(const PageKey parsed_key, ParseId<PageKey>("chains.keys", key));
      for (const PartRange& part : parts) chain.keys.push_back(part.RecordOf(parsed_key));
    }
    parsed.longest = std::max(parsed.longest, chain.keys.size());
    parsed.chains.push_back(std::move(chain));
  }
  return parsed;
}

LookupQuery QueryOf(const Caller& caller, const ParsedChains& parsed, const Chain& chain) {
  LookupQuery query;
  query.scope = caller.scopes()[chain.scope_index].id;
  query.identity = parsed.identity;
  query.keys = chain.keys;
  return query;
}

// Nobody asks for these pages yet, but soon; each is seen by the encoder, as its ladder may be
// lower by now.
class Ahead : public TieredStore::LayerListener {
 public:
  Ahead(Encoder& encoder, const ScopeId& scope, absl::Span<const RecordKey> keys)
      : encoder_(encoder), scope_(scope), keys_(keys.begin(), keys.end()) {}
  void OnBegun(size_t, const HostPagePtr&) override {}
  void OnSegment(size_t, uint32_t) override {}
  void OnDone(size_t index, absl::StatusOr<HostPagePtr> page) override {
    if (page.ok()) encoder_.Consider({keys_[index], scope_});
  }

 private:
  Encoder& encoder_;
  const ScopeId scope_;
  const std::vector<RecordKey> keys_;
};

// Brings pages up from SSD, layer by layer: the fetch that follows joins.
void StartLoading(ServiceContext& context, absl::string_view session, LeaseId lease,
                  const ScopeId& scope, absl::Span<const RecordKey> keys,
                  absl::Span<const PlacedPage> pages) {
  std::vector<TieredStore::LayerPage> missing;
  for (size_t i = 0; i < pages.size(); ++i) {
    if (pages[i].state == PageState::kLoading) missing.push_back({i, keys[i]});
  }
  if (missing.empty()) return;
  context.store.LoadLeasedByLayer(session, lease, missing,
                                  std::make_shared<Ahead>(context.encoder, scope, keys));
}

// Groups come in the order of their layers: while the first one is computed, the records of the
// later ones come up. A shard of the heads knows no shards of other groups.
void PrefetchLaterGroups(ServiceContext& context, const ModelSpec& spec, LookupQuery query,
                         size_t page_count) {
  const RecordKey& first = query.keys[0];
  if (first.group + size_t{1} >= spec.groups.size() ||
      first.head_count != spec.groups[first.group].kv_head_count) {
    return;
  }
  std::vector<RecordKey> keys;
  std::vector<uint32_t> first_layers;
  uint32_t layer = 0;
  for (size_t group = first.group; group < spec.groups.size(); ++group) {
    for (size_t i = 0; group > first.group && i < page_count; ++i) {
      keys.push_back({query.keys[i].key, static_cast<uint8_t>(group), 0,
                      static_cast<uint16_t>(spec.groups[group].kv_head_count)});
      first_layers.push_back(layer);
    }
    layer += spec.groups[group].layer_count;
  }
  PrefetchQuery prefetch;
  prefetch.scope = query.scope;
  prefetch.identity = query.identity;
  prefetch.keys = keys;
  prefetch.first_layers = first_layers;
  prefetch.session_id = query.lease.session_id;
  prefetch.request_id = query.lease.request_id;
  context.store.Prefetch(prefetch);
}

void FillPages(const std::vector<PlacedPage>& pages, v1::LookupResponse& response) {
  for (const PlacedPage& page : pages) {
    v1::PageInfo& info = *response.add_pages();
    info.set_state(page.state == PageState::kReady ? v1::PAGE_STATE_READY : v1::PAGE_STATE_LOADING);
    info.set_tier(static_cast<v1::Tier>(static_cast<int>(page.tier) + 1));
    info.set_precision(ToWire(page.precision));
    info.set_fidelity(ToWire(page.fidelity));
    info.set_bytes(static_cast<uint64_t>(page.bytes));
    info.set_base_position(page.base_position);
  }
}

void CountLookup(ServiceContext& context, const Caller& caller, const ParsedChains& parsed,
                 const Chain& chain, Precision precision_min,
                 const std::vector<PlacedPage>& pages) {
  LookupEvent event;
  event.tenant = caller.tenant();
  if (parsed.model.has_value()) event.model = parsed.model->spec.model;
  event.scope_kind = caller.scopes()[chain.scope_index].scope.kind;
  event.precision_min = precision_min;
  event.page_tokens = !pages.empty()             ? pages[0].page_tokens
                      : parsed.model.has_value() ? parsed.model->page_tokens
                                                 : context.options.page_tokens;
  event.asked_pages = std::max(parsed.longest, pages.size());
  for (const PlacedPage& page : pages) event.found.push_back({page.tier, page.precision});
  context.metrics.OnLookup(event);
}

// The chain with the longest prefix; the earlier one on a tie.
absl::StatusOr<size_t> LongestChain(ServiceContext& context, const Caller& caller,
                                    const ParsedChains& parsed, const LookupQuery& terms) {
  size_t best = 0;
  size_t best_pages = 0;
  if (parsed.chains.size() == 1) return best;
  for (size_t i = 0; i < parsed.chains.size(); ++i) {
    LookupQuery query = QueryOf(caller, parsed, parsed.chains[i]);
    query.precision_min = terms.precision_min;
    query.fidelity_min = terms.fidelity_min;
    query.touch = false;
    PAGODA_ASSIGN_OR_RETURN(const LookupAnswer answer, context.store.LookupPrefix(query));
    if (answer.pages.size() > best_pages) {
      best = i;
      best_pages = answer.pages.size();
    }
  }
  return best;
}

absl::Status AttachToSequence(ServiceContext& context, const SessionId& session,
                              const std::string& sequence_id, const ScopeId& scope,
                              absl::Span<const RecordKey> keys,
                              absl::Span<const PlacedPage> pages) {
  if (sequence_id.empty()) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(const SequenceId sequence,
                          ParseId<SequenceId>("sequence_id", sequence_id));
  std::vector<SequencePage> attached;
  for (size_t i = 0; i < pages.size(); ++i) {
    attached.push_back({{keys[i], scope}, pages[i].base_position + pages[i].page_tokens});
  }
  return context.encoder.AttachPages(session, sequence, attached);
}

absl::Status Lookup(ServiceContext& context, const Caller& caller, const v1::LookupRequest& request,
                    v1::LookupResponse& response) {
  PAGODA_ASSIGN_OR_RETURN(const ParsedChains parsed,
                          ParseChains(context, caller, request.identity(), request.part(),
                                      request.parts(), request.chains()));
  LookupQuery terms;
  PAGODA_ASSIGN_OR_RETURN(terms.precision_min, FromWire(request.precision_min(), Precision::kNone));
  PAGODA_ASSIGN_OR_RETURN(terms.fidelity_min, FromWire(request.fidelity_min(), Precision::kNone));
  SessionId session;
  if (!request.peek() || !request.session_id().empty()) {
    PAGODA_ASSIGN_OR_RETURN(session, ParseId<SessionId>("session_id", request.session_id()));
    PAGODA_RETURN_IF_ERROR(context.sessions.Check(session, caller.tenant()));
  }
  if (!request.peek() && request.request_id().size() != 16) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request_id: has %d bytes, expected 16", request.request_id().size()));
  }
  const std::string session_bytes(session.view());
  if (!parsed.model.has_value()) {
    if (!request.peek()) context.store.ReleaseRequest(session_bytes, request.request_id());
    CountLookup(context, caller, parsed, parsed.chains[0], terms.precision_min, {});
    return absl::OkStatus();
  }

  PAGODA_ASSIGN_OR_RETURN(const size_t best, LongestChain(context, caller, parsed, terms));
  const Chain& chain = parsed.chains[best];
  LookupQuery query = QueryOf(caller, parsed, chain);
  query.precision_min = terms.precision_min;
  query.fidelity_min = terms.fidelity_min;
  query.touch = !request.peek();
  if (!request.peek()) query.lease = {session_bytes, request.request_id(), context.options.lease};
  PAGODA_ASSIGN_OR_RETURN(const LookupAnswer answer, context.store.LookupPrefix(query));
  CountLookup(context, caller, parsed, chain, terms.precision_min, answer.pages);
  response.set_chain_index(static_cast<uint32_t>(best));
  FillPages(answer.pages, response);
  if (request.peek()) return absl::OkStatus();
  if (answer.lease == 0) {
    // Asked again and nothing is left: what the request held before is given back.
    context.store.ReleaseRequest(session_bytes, request.request_id());
    return absl::OkStatus();
  }
  response.set_lease_id(LeaseToken{answer.lease, context.instance_tag, chain.scope_index}.Encode());
  response.set_lease_seconds(absl::ToDoubleSeconds(context.options.lease));
  if (absl::Status status = AttachToSequence(context, session, request.sequence_id(), query.scope,
                                             chain.keys, answer.pages);
      !status.ok()) {
    context.store.ReleaseLease(session_bytes, answer.lease);
    return status;
  }
  StartLoading(context, session_bytes, answer.lease, query.scope, chain.keys, answer.pages);
  PrefetchLaterGroups(context, parsed.model->spec, query, answer.pages.size());
  // The session may have ended meanwhile, after its leases were given back.
  if (absl::Status status = context.sessions.Check(session, caller.tenant()); !status.ok()) {
    context.store.ReleaseLease(session_bytes, answer.lease);
    context.encoder.CloseSession(session);
    return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AnswerLookup(ServiceContext& context, const Caller& caller,
                          const v1::LookupRequest& request, v1::LookupResponse& response) {
  absl::Status status = Lookup(context, caller, request, response);
  if (!status.ok()) context.metrics.OnLookupError("");
  return status;
}

absl::Status AnswerRelease(ServiceContext& context, const Caller& caller,
                           const v1::ReleaseRequest& request) {
  PAGODA_ASSIGN_OR_RETURN(const SessionId session,
                          ParseId<SessionId>("session_id", request.session_id()));
  if (static_cast<uint32_t>(request.lease_ids_size()) > context.options.limits.batch_pages_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("lease_ids: %d given, batch_pages_max is %d", request.lease_ids_size(),
                        context.options.limits.batch_pages_max));
  }
  // A session that is gone has no leases: released is released.
  if (!context.sessions.Check(session, caller.tenant()).ok()) return absl::OkStatus();
  for (const std::string& id : request.lease_ids()) {
    const std::optional<LeaseToken> token = LeaseToken::Decode(id);
    if (!token.has_value() || token->instance != context.instance_tag) continue;
    context.store.ReleaseLease(session.view(), token->lease);
  }
  return absl::OkStatus();
}

absl::Status AnswerRenew(ServiceContext& context, const Caller& caller,
                         const v1::RenewRequest& request, v1::RenewResponse& response) {
  PAGODA_ASSIGN_OR_RETURN(const SessionId session,
                          ParseId<SessionId>("session_id", request.session_id()));
  PAGODA_RETURN_IF_ERROR(context.sessions.Check(session, caller.tenant()));
  const std::optional<LeaseToken> token = LeaseToken::Decode(request.lease_id());
  if (!token.has_value() || token->instance != context.instance_tag) {
    return absl::NotFoundError("the lease is unknown; look up again");
  }
  PAGODA_RETURN_IF_ERROR(
      context.store.RenewLease(session.view(), token->lease, context.options.lease));
  response.set_lease_seconds(absl::ToDoubleSeconds(context.options.lease));
  return absl::OkStatus();
}

absl::Status AnswerPrefetch(ServiceContext& context, const Caller& caller,
                            const v1::PrefetchRequest& request, v1::PrefetchResponse& response) {
  PAGODA_ASSIGN_OR_RETURN(const ParsedChains parsed,
                          ParseChains(context, caller, request.identity(), request.part(),
                                      request.parts(), request.chains()));
  const double seconds = request.deadline_seconds();
  if (!(seconds >= 0 && seconds <= kHintSecondsMax)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("deadline_seconds: is %g, expected 0 (the server's choice) to %g", seconds,
                        kHintSecondsMax));
  }
  if (!parsed.model.has_value()) return absl::OkStatus();
  PrefetchQuery query;
  query.identity = parsed.identity;
  query.deadline = absl::Seconds(seconds);
  // The hint goes with its session; without a living one it goes at its deadline.
  const absl::StatusOr<SessionId> session = ParseId<SessionId>("session_id", request.session_id());
  if (session.ok() && context.sessions.Check(*session, caller.tenant()).ok()) {
    query.session_id = std::string(session->view());
  }
  int64_t accepted = 0;
  for (const Chain& chain : parsed.chains) {
    query.scope = caller.scopes()[chain.scope_index].id;
    query.keys = chain.keys;
    accepted += context.store.Prefetch(query);
  }
  response.set_pages_accepted(static_cast<uint32_t>(accepted));
  return absl::OkStatus();
}

absl::Status AnswerReport(ServiceContext& context, const Caller& caller,
                          const v1::ReportRequest& request) {
  const uint32_t most = context.options.limits.batch_pages_max;
  if (static_cast<uint32_t>(request.accessed_keys_size()) > most ||
      static_cast<uint32_t>(request.attention_size()) > most) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("report: %d accessed keys and %d masses, batch_pages_max is %d",
                        request.accessed_keys_size(), request.attention_size(), most));
  }
  context.metrics.OnReport(request.ttft_seconds(), request.prompt_tokens(), request.hit_tokens(),
                           request.decoded_tokens());
  if (request.accessed_keys().empty() && request.attention().empty()) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(const Identity identity,
                          ParseId<Identity>("identity", request.identity()));
  const std::optional<KnownModel> model = context.models.Find(identity);
  if (!model.has_value()) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(const PartRange part, ParsePart(v1::Part(), model->spec));
  std::vector<RecordKey> keys;
  for (const std::string& key : request.accessed_keys()) {
    PAGODA_ASSIGN_OR_RETURN(const PageKey parsed, ParseId<PageKey>("accessed_keys", key));
    keys.push_back(part.RecordOf(parsed));
  }
  std::vector<RecordKey> attended;
  std::vector<double> masses;
  for (const v1::PageMass& page : request.attention()) {
    PAGODA_ASSIGN_OR_RETURN(const PageKey parsed, ParseId<PageKey>("attention.key", page.key()));
    attended.push_back(part.RecordOf(parsed));
    masses.push_back(page.mass());
  }
  for (const CallerScope& scope : caller.scopes()) {
    context.store.ReportAttention(scope.id, attended, masses);
  }
  // A use of the chain, in whichever of the caller's scopes it lies.
  for (const CallerScope& scope : caller.scopes()) {
    LookupQuery query;
    query.scope = scope.id;
    query.identity = identity;
    query.keys = keys;
    PAGODA_ASSIGN_OR_RETURN(const LookupAnswer answer, context.store.LookupPrefix(query));
    if (!answer.pages.empty()) break;
  }
  return absl::OkStatus();
}

}  // namespace pagoda
