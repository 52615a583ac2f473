#include "cache-server/admin_service.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache-server/admin_pages.h"
#include "cache-server/admin_policy.h"
#include "cache-server/hbm_metrics.h"
#include "cache-server/prefetch_metrics.h"
#include "cache-server/request_fields.h"
#include "cache-server/unary_call.h"
#include "cache-server/version.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr double kWaitSecondsMax = 600;

absl::Status CheckAdmin(const Caller& caller) {
  if (caller.is_admin()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("tenant ", caller.tenant(), " is no admin; its token needs admin: true"));
}

absl::StatusOr<absl::Duration> ParseTimeout(double seconds, absl::Duration standard) {
  if (seconds == 0) return standard;
  if (!(seconds > 0) || seconds > kWaitSecondsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout_seconds: is ", seconds, ", expected 0 to ", kWaitSecondsMax));
  }
  return absl::Seconds(seconds);
}

void FillPath(const PathFigures& figures, v1::PathStatus& path) {
  path.set_path(std::string(figures.path));
  path.set_bytes_out(figures.bytes_out);
  path.set_bytes_in(figures.bytes_in);
  path.set_fetches(figures.out.count);
  path.set_pushed_pages(figures.in.count);
  path.set_failures(figures.failures);
  path.set_fetch_p50_seconds(figures.out.p50_seconds);
  path.set_fetch_p99_seconds(figures.out.p99_seconds);
  path.set_push_p50_seconds(figures.in.p50_seconds);
  path.set_push_p99_seconds(figures.in.p99_seconds);
}

void FillTier(v1::Tier tier, const TierStats& stats, v1::TierStatus& out) {
  out.set_tier(tier);
  out.set_present(stats.present);
  out.set_capacity_bytes(static_cast<uint64_t>(stats.capacity_bytes));
  out.set_used_bytes(static_cast<uint64_t>(stats.used_bytes));
  out.set_reserved_bytes(static_cast<uint64_t>(stats.reserved_bytes));
  out.set_pages(static_cast<uint64_t>(stats.page_count));
  for (const auto& [precision, count] : stats.pages_by_precision) {
    if (count > 0) {
      (*out.mutable_pages_by_precision())[std::string(PrecisionName(precision))] =
          static_cast<uint64_t>(count);
    }
  }
}

// Streams batches that are ready. Deletes itself.
class BatchWriter : public grpc::ServerWriteReactor<v1::ListPagesResponse> {
 public:
  explicit BatchWriter(Metrics& metrics) : timer_(metrics, RpcMethod::kListPages) {}

  void End(const absl::Status& status) {
    timer_.Finish(status.code());
    Finish(ToGrpc(status));
  }
  void Write(std::vector<v1::ListPagesResponse> batches) {
    batches_ = std::move(batches);
    Next();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client is gone"));
    ++next_;
    Next();
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (next_ == batches_.size()) return End(absl::OkStatus());
    StartWrite(&batches_[next_]);
  }

  RpcTimer timer_;
  std::vector<v1::ListPagesResponse> batches_;
  size_t next_ = 0;
};

}  // namespace

AdminService::AdminService(ServiceContext& context, std::function<void()> on_drain)
    : context_(context), on_drain_(std::move(on_drain)), start_(context.clock.Monotonic()) {}

grpc::ServerUnaryReactor* AdminService::AnswerLater(grpc::CallbackServerContext* call,
                                                    RpcMethod method,
                                                    const google::protobuf::Message& request,
                                                    Work work) {
  auto timer = std::make_shared<RpcTimer>(context_.metrics, method);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const auto finish = [timer, reactor](const absl::Status& status) {
    timer->Finish(status.code());
    reactor->Finish(ToGrpc(status));
  };
  const absl::StatusOr<CallerPtr> caller = AdmitCall(context_, call, request);
  absl::Status admitted = caller.ok() ? CheckAdmin(**caller) : caller.status();
  if (admitted.ok() &&
      !context_.admin_jobs.TryPush([finish, work = std::move(work)] { finish(work()); })) {
    admitted = absl::ResourceExhaustedError("too many admin calls wait; try again later");
  }
  if (!admitted.ok()) finish(admitted);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* call,
                                               const v1::StatusRequest* request,
                                               v1::StatusResponse* response) {
  return AnswerUnary(context_, call, RpcMethod::kStatus, *request, [&](const Caller& caller) {
    PAGODA_RETURN_IF_ERROR(CheckAdmin(caller));
    const StoreStats stats = context_.store.Stats();
    response->set_version(kVersion);
    response->set_instance_id(context_.instance_id);
    response->set_uptime_seconds(absl::ToDoubleSeconds(context_.clock.Monotonic() - start_));
    response->set_state(context_.sessions.draining() ? "draining" : "serving");
    response->set_listen(listen_);
    response->set_data_dir(context_.options.data_dir);
    FillTier(v1::TIER_HOST, stats.host, *response->add_tiers());
    FillTier(v1::TIER_SSD, stats.ssd, *response->add_tiers());
    const HbmState hbm = context_.hbm != nullptr ? context_.hbm->state() : HbmState();
    FillTier(v1::TIER_HBM, hbm.tier, *response->add_tiers());
    response->set_pages(static_cast<uint64_t>(stats.page_count));
    response->set_sessions(context_.sessions.session_count());
    response->set_sequences(context_.encoder.sequence_count());
    response->set_leases(static_cast<uint64_t>(stats.lease_count));
    response->set_leased_pages(static_cast<uint64_t>(stats.leased_page_count));
    response->set_staged_pages(static_cast<uint64_t>(stats.staged_page_count));
    response->set_staged_bytes(static_cast<uint64_t>(stats.host.staged_bytes));
    response->set_pinned_pages(static_cast<uint64_t>(stats.pinned_page_count));
    response->set_persist_queue_pages(static_cast<uint64_t>(stats.write_queue_count));
    response->set_unflushed_pages(static_cast<uint64_t>(stats.unflushed_count));
    response->set_encode_queue_pages(static_cast<uint64_t>(context_.encoder.queued_count()));
    for (const PathFigures& figures : context_.metrics.Paths()) {
      FillPath(figures, *response->add_paths());
    }
    for (const auto& [name, value] : context_.metrics.Counters()) {
      (*response->mutable_counters())[name] = value;
    }
    const auto add_counters = [response](const std::vector<CountedSeries>& all) {
      for (const CountedSeries& series : all) {
        if (series.value == 0) continue;
        (*response->mutable_counters())[series.Name()] = static_cast<uint64_t>(series.value);
      }
    };
    add_counters(PrefetchSeriesOf(stats.prefetch));
    add_counters(HbmSeriesOf(hbm.counts));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::ListModels(grpc::CallbackServerContext* call,
                                                   const v1::ListModelsRequest* request,
                                                   v1::ListModelsResponse* response) {
  return AnswerLater(call, RpcMethod::kListModels, *request, [this, response] {
    pagoda::ListModels(context_, *response);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::ListPagesResponse>* AdminService::ListPages(
    grpc::CallbackServerContext* call, const v1::ListPagesRequest* request) {
  auto* writer = new BatchWriter(context_.metrics);
  const absl::StatusOr<CallerPtr> caller = AdmitCall(context_, call, *request);
  absl::Status admitted = caller.ok() ? CheckAdmin(**caller) : caller.status();
  if (admitted.ok() && !context_.admin_jobs.TryPush([this, writer, request = *request] {
        absl::StatusOr<std::vector<v1::ListPagesResponse>> batches =
            pagoda::ListPages(context_, request);
        if (batches.ok()) {
          writer->Write(*std::move(batches));
        } else {
          writer->End(batches.status());
        }
      })) {
    admitted = absl::ResourceExhaustedError("too many admin calls wait; try again later");
  }
  if (!admitted.ok()) writer->End(admitted);
  return writer;
}

grpc::ServerUnaryReactor* AdminService::SetLadder(grpc::CallbackServerContext* call,
                                                  const v1::SetLadderRequest* request,
                                                  v1::SetLadderResponse* response) {
  return AnswerLater(call, RpcMethod::kSetLadder, *request, [this, request, response] {
    PAGODA_ASSIGN_OR_RETURN(const Precision ladder, FromWire(request->ladder(), Precision::kNone));
    if (ladder == Precision::kNone || ladder > Precision::kRaw16) {
      return absl::InvalidArgumentError(
          absl::StrCat("ladder: is ", request->ladder(), ", expected raw16, q8, q4, q3 or q2"));
    }
    std::optional<Identity> identity;
    if (!request->identity().empty()) {
      PAGODA_ASSIGN_OR_RETURN(identity, ParseId<Identity>("identity", request->identity()));
    }
    PAGODA_RETURN_IF_ERROR(context_.models.SetLadder(identity, ladder));
    LogInfo("ladder_set", {{"model", identity.has_value() ? identity->hex() : "all"},
                           {"ladder", std::string(PrecisionName(ladder))}});
    response->set_pages_queued(static_cast<uint64_t>(context_.encoder.ConsiderAll(identity)));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::SetPolicy(grpc::CallbackServerContext* call,
                                                  const v1::SetPolicyRequest* request,
                                                  v1::SetPolicyResponse* response) {
  return AnswerLater(call, RpcMethod::kSetPolicy, *request, [this, request, response] {
    return pagoda::SetPolicy(context_.store, *request, *response);
  });
}

grpc::ServerUnaryReactor* AdminService::Pin(grpc::CallbackServerContext* call,
                                            const v1::PinRequest* request,
                                            v1::PinResponse* response) {
  return AnswerLater(call, RpcMethod::kPin, *request, [this, request, response] {
    uint64_t pages = 0;
    PAGODA_RETURN_IF_ERROR(PinPages(context_, request->filter(), /*pin=*/true, pages));
    response->set_pages(pages);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Unpin(grpc::CallbackServerContext* call,
                                              const v1::PinRequest* request,
                                              v1::PinResponse* response) {
  return AnswerLater(call, RpcMethod::kUnpin, *request, [this, request, response] {
    uint64_t pages = 0;
    PAGODA_RETURN_IF_ERROR(PinPages(context_, request->filter(), /*pin=*/false, pages));
    response->set_pages(pages);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Evict(grpc::CallbackServerContext* call,
                                              const v1::EvictRequest* request,
                                              v1::EvictResponse* response) {
  return AnswerLater(call, RpcMethod::kEvict, *request, [this, request, response] {
    return EvictPages(context_, request->filter(), *response);
  });
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* call,
                                              const v1::DrainRequest* request,
                                              v1::DrainResponse* response) {
  return AnswerLater(call, RpcMethod::kDrain, *request, [this, request, response] {
    PAGODA_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            ParseTimeout(request->timeout_seconds(), absl::Seconds(30)));
    const absl::Duration end = context_.clock.Monotonic() + timeout;
    LogInfo("draining", {{"sessions", absl::StrCat(context_.sessions.session_count())},
                         {"timeout", absl::FormatDuration(timeout)}});
    on_drain_();
    context_.sessions.StartDraining();
    context_.sessions.AwaitNone(timeout);
    // What is in host memory only: encoded where its ladder says so, then written.
    context_.encoder.ConsiderAll(std::nullopt);
    context_.encoder.AwaitIdle(std::max(end - context_.clock.Monotonic(), absl::Seconds(1)));
    if (context_.store.has_ssd()) PAGODA_RETURN_IF_ERROR(context_.store.Flush());
    response->set_sessions_left(context_.sessions.session_count());
    response->set_pages_unpersisted(static_cast<uint64_t>(context_.store.Stats().dirty_page_count));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Flush(grpc::CallbackServerContext* call,
                                              const v1::FlushRequest* request,
                                              v1::FlushResponse* response) {
  return AnswerLater(call, RpcMethod::kFlush, *request, [this, request, response] {
    PAGODA_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            ParseTimeout(request->timeout_seconds(), absl::Seconds(30)));
    if (!context_.store.has_ssd()) {
      return absl::FailedPreconditionError("there is no SSD tier; ssd.enabled is false");
    }
    context_.encoder.ConsiderAll(std::nullopt);
    context_.encoder.AwaitIdle(timeout);
    PAGODA_RETURN_IF_ERROR(context_.store.Flush());
    response->set_pages_unpersisted(static_cast<uint64_t>(context_.store.Stats().dirty_page_count));
    return absl::OkStatus();
  });
}

}  // namespace pagoda
