#include "cache-server/admin_pages.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "cache-server/request_fields.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr uint32_t kListDefault = 1000;
constexpr uint32_t kListMax = 100000;
constexpr int kBatchPages = 512;

void FillRecord(const PageInfo& page, v1::PageRecord& record) {
  record.set_key(std::string(page.record.key.view()));
  record.set_parent(std::string(page.parent.view()));
  record.set_identity(std::string(page.identity.view()));
  record.set_scope_kind(ToWire(page.scope_kind));
  record.set_scope_id(std::string(page.scope.view()));
  record.mutable_part()->set_group(page.record.group);
  record.mutable_part()->set_head_begin(page.record.head_begin);
  record.mutable_part()->set_head_count(page.record.head_count);
  record.set_page_tokens(page.page_tokens);
  record.set_base_position(page.base_position);
  record.set_precision(ToWire(page.precision));
  record.set_fidelity(ToWire(page.fidelity));
  if (page.in_host) record.add_tiers(v1::TIER_HOST);
  if (page.on_ssd) record.add_tiers(v1::TIER_SSD);
  record.set_bytes(static_cast<uint64_t>(page.in_host ? page.host_bytes : page.ssd_bytes));
  record.set_leases(static_cast<uint32_t>(page.lease_count));
  record.set_pinned(page.pinned);
}

}  // namespace

absl::StatusOr<AdminFilter> ParseFilter(const v1::PageFilter& filter) {
  AdminFilter parsed;
  if (!filter.key().empty()) {
    PAGODA_ASSIGN_OR_RETURN(parsed.key, ParseId<PageKey>("filter.key", filter.key()));
  }
  if (!filter.identity().empty()) {
    PAGODA_ASSIGN_OR_RETURN(parsed.store.identity,
                            ParseId<Identity>("filter.identity", filter.identity()));
  }
  if (!filter.scope_id().empty()) {
    PAGODA_ASSIGN_OR_RETURN(parsed.store.scope,
                            ParseId<ScopeId>("filter.scope_id", filter.scope_id()));
  }
  switch (filter.tier()) {
    case v1::TIER_UNSPECIFIED:
      break;
    case v1::TIER_HOST:
      parsed.store.tier = TierKind::kHost;
      break;
    case v1::TIER_SSD:
      parsed.store.tier = TierKind::kSsd;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("filter.tier: %d, expected host or ssd", filter.tier()));
  }
  if (filter.precision() != v1::PRECISION_UNSPECIFIED) {
    PAGODA_ASSIGN_OR_RETURN(parsed.store.precision, FromWire(filter.precision(), Precision::kNone));
  }
  return parsed;
}

absl::StatusOr<std::vector<v1::ListPagesResponse>> ListPages(ServiceContext& context,
                                                             const v1::ListPagesRequest& request) {
  PAGODA_ASSIGN_OR_RETURN(const AdminFilter filter, ParseFilter(request.filter()));
  const uint32_t limit = request.limit() == 0 ? kListDefault : request.limit();
  if (limit > kListMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("limit: %d, expected at most %d", limit, kListMax));
  }
  std::vector<v1::ListPagesResponse> batches;
  uint32_t count = 0;
  context.store.ForEachPage([&](const PageInfo& page) {
    if (count >= limit || !filter.Matches(page)) return;
    if (batches.empty() || batches.back().pages_size() == kBatchPages) batches.emplace_back();
    FillRecord(page, *batches.back().add_pages());
    ++count;
  });
  return batches;
}

absl::Status PinPages(ServiceContext& context, const v1::PageFilter& wire, bool pin,
                      uint64_t& pages) {
  PAGODA_ASSIGN_OR_RETURN(const AdminFilter filter, ParseFilter(wire));
  std::vector<PageRef> matched;
  context.store.ForEachPage([&](const PageInfo& page) {
    if (filter.Matches(page)) matched.push_back({page.record, page.scope});
  });
  pages = 0;
  for (const PageRef& page : matched) {
    const absl::Status status = pin ? context.store.Pin(page.record, page.scope)
                                    : context.store.Unpin(page.record, page.scope);
    if (status.ok()) ++pages;
  }
  return pages > 0 ? absl::OkStatus() : absl::NotFoundError("no page matches the filter");
}

absl::Status EvictPages(ServiceContext& context, const v1::PageFilter& wire,
                        v1::EvictResponse& response) {
  PAGODA_ASSIGN_OR_RETURN(const AdminFilter filter, ParseFilter(wire));
  PageFilter evict = filter.store;
  evict.keep_locked = true;
  EvictResult sum;
  const auto add = [&](const EvictResult& result) {
    sum.page_count += result.page_count;
    sum.host_bytes += result.host_bytes;
    sum.ssd_bytes += result.ssd_bytes;
  };
  if (filter.key.has_value()) {
    std::vector<RecordKey> records;
    context.store.ForEachPage([&](const PageInfo& page) {
      if (filter.Matches(page)) records.push_back(page.record);
    });
    for (const RecordKey& record : records) {
      evict.record = record;
      add(context.store.Evict(evict));
    }
  } else {
    add(context.store.Evict(evict));
  }
  uint64_t kept = 0;
  context.store.ForEachPage([&](const PageInfo& page) { kept += filter.Matches(page) ? 1 : 0; });
  response.set_pages(static_cast<uint64_t>(sum.page_count));
  response.set_bytes(static_cast<uint64_t>(sum.host_bytes + sum.ssd_bytes));
  response.set_pages_kept(kept);
  return absl::OkStatus();
}

void FillLadder(const Ladder& ladder, v1::ModelStatus& status) {
  status.set_ladder(ToWire(ladder.fresh));
  v1::LadderSteps& steps = *status.mutable_steps();
  if (ladder.idle.has_value()) {
    steps.set_idle(ToWire(*ladder.idle));
    steps.set_idle_after_seconds(absl::ToDoubleSeconds(ladder.idle_after));
  }
  if (ladder.pressure.has_value()) steps.set_pressure(ToWire(*ladder.pressure));
  if (ladder.ssd.has_value()) steps.set_ssd(ToWire(*ladder.ssd));
}

void ListModels(ServiceContext& context, v1::ListModelsResponse& response) {
  absl::flat_hash_map<Identity, v1::ModelStatus> models;
  for (const KnownModel& model : context.models.All()) {
    v1::ModelStatus& status = models[model.identity];
    status.set_model(model.spec.model);
    FillLadder(model.ladder, status);
    status.set_page_tokens(model.page_tokens);
    for (const int32_t layer : model.k_lo_layers) {
      status.add_k_lo_layers(static_cast<uint32_t>(layer));
    }
    status.set_profile_problem(model.profile_problem);
  }
  context.store.ForEachPage([&](const PageInfo& page) {
    v1::ModelStatus& status = models[page.identity];
    status.set_pages(status.pages() + 1);
    status.set_host_bytes(status.host_bytes() + static_cast<uint64_t>(page.host_bytes));
    status.set_ssd_bytes(status.ssd_bytes() + static_cast<uint64_t>(page.ssd_bytes));
    if (status.page_tokens() == 0) status.set_page_tokens(page.page_tokens);
  });
  for (auto& [identity, status] : models) {
    status.set_identity(std::string(identity.view()));
    if (status.ladder() == v1::PRECISION_UNSPECIFIED) {
      FillLadder(context.models.LadderOf(identity), status);
    }
    *response.add_models() = std::move(status);
  }
  std::sort(response.mutable_models()->begin(), response.mutable_models()->end(),
            [](const v1::ModelStatus& a, const v1::ModelStatus& b) {
              return std::tie(a.model(), a.identity()) < std::tie(b.model(), b.identity());
            });
}

}  // namespace pagoda
