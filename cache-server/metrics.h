// What happens in the daemon, counted. One method per kind of event; names are in metric_names.h.
// States (bytes used, sessions open) are not kept here: gauge_collector.h reads them at a scrape.
//
// Threads  every method from any thread. Counters and gauges are atomics, found once at the start
//          for enums and once per model or tenant; a histogram takes its own short lock.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache-server/session_registry.h"
#include "storage/base/precision.h"
#include "storage/base/scope.h"
#include "storage/store_observer.h"

namespace pagoda {

enum class RpcMethod : uint8_t {
  kHello,
  kSession,
  kLookup,
  kFetch,
  kPush,
  kRelease,
  kRenew,
  kPrefetch,
  kReport,
  kPeer,  // Cache
  kStatus,
  kListModels,
  kListPages,
  kSetLadder,
  kSetPolicy,
  kPin,
  kUnpin,
  kEvict,
  kDrain,
  kFlush,  // Admin
};
constexpr int kRpcMethodCount = 20;
absl::string_view RpcMethodName(RpcMethod method);

enum class PutResult : uint8_t {
  kStored,
  kDuplicate,
  kReplaced,
  kRejectedParent,
  kRejectedScope,
  kRejectedRequest,
  kRejectedRoom,
  kRejectedChecksum,
  kError,
};
constexpr int kPutResultCount = 9;

enum class EncodePlace : uint8_t { kLadder = 0, kFetch = 1, kPressure = 2, kSsd = 3 };
enum class EncodeFailure : uint8_t { kValues = 0, kRoom = 1, kOther = 2 };
enum class TransferPath : uint8_t { kGrpc = 0, kSsd = 1, kShm = 2, kCuda = 3, kNccl = 4 };
constexpr int kTransferPathCount = 5;
// Why a page, or a worker, was sent from device memory to host memory.
enum class DeviceFallback : uint8_t {
  kAbsent = 0,       // the daemon has no device
  kOtherDevice = 1,  // the worker has another one
  kExport = 2,       // the two processes cannot share its memory
  kLost = 3,
  kRoom = 4,     // every page there is in use, or too much is under way
  kLoading = 5,  // not in host memory yet, or not any more
  kScope = 6,    // which the caller may read but not write
  kLimit = 7,    // too many workers, or a header beyond a packet
};
constexpr int kDeviceFallbackCount = 8;
enum class TransferDirection : uint8_t { kIn = 0, kOut = 1 };

// One answered lookup.
struct LookupEvent {
  absl::string_view tenant;
  absl::string_view model;
  ScopeKind scope_kind = ScopeKind::kPrivate;
  Precision precision_min = Precision::kNone;
  uint32_t page_tokens = 0;
  size_t asked_pages = 0;
  struct Found {
    TierKind tier;
    Precision precision;
  };
  std::vector<Found> found;
};

struct PathFigures {
  absl::string_view path;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t failures = 0;
  struct Times {  // estimates from a histogram
    uint64_t count = 0;
    double p50_seconds = 0;
    double p99_seconds = 0;
  };
  Times in;
  Times out;
};

class Metrics : public StoreObserver {
 public:
  // Label values beyond these become "other".
  Metrics(const std::vector<std::string>& tenants, const std::vector<std::string>& models);

  std::shared_ptr<prometheus::Registry> registry() { return registry_; }
  // Counters since the start as `name{label="value"}`, for the Status RPC. Zeros are left out.
  std::map<std::string, uint64_t> Counters() const;

  void OnRpcStart(RpcMethod method);
  void OnRpcEnd(RpcMethod method, absl::StatusCode code, absl::Duration took);
  void OnLookup(const LookupEvent& event);
  void OnLookupError(absl::string_view model);
  void OnPut(PutResult result);
  void OnPutBytes(absl::string_view tenant, Precision precision, int64_t bytes);
  void OnCommitted(absl::Duration took);
  void OnPusherMismatch();
  void OnTransferStart(TransferDirection direction);
  void OnTransferEnd(TransferDirection direction, bool ok);
  void OnTransferBytes(TransferDirection direction, int64_t bytes);
  // A client was told where pages of so many bytes lie.
  void OnShmLocated(int64_t bytes);
  // The same of pages in device memory.
  void OnDeviceLocated(int64_t bytes);
  void OnDeviceFallback(DeviceFallback reason);
  // Pages were sent to a worker on another GPU, or a request for them broke its link.
  void OnPeerSent(int64_t bytes, absl::Duration took);
  void OnPeerFailed();
  // So many were taken out of a staging area.
  void OnShmTaken(int64_t bytes);
  // One Fetch, one answer where pages lie, or one pushed page.
  void OnTransferTook(TransferDirection direction, absl::Duration took,
                      TransferPath path = TransferPath::kGrpc);
  // What clients moved by each path since the start; for the Status RPC.
  std::vector<PathFigures> Paths() const;
  void OnEncoded(EncodePlace place, Precision precision, int64_t freed_bytes, absl::Duration took);
  void OnEncodeFailed(EncodeFailure failure);
  void OnEncodeRefused();
  void OnConnectionRefused(absl::string_view reason);  // of acceptor.h
  void OnSessionEnded(SessionEndReason reason);
  void OnReport(double ttft_seconds, uint32_t prompt_tokens, uint32_t hit_tokens,
                uint32_t decoded_tokens);

  // StoreObserver
  void OnCommit(CommitOutcome outcome, int64_t bytes) override;
  void OnEvicted(TierKind tier, EvictionReason reason, EvictionAction action,
                 int64_t bytes) override;
  void OnPromoted(int64_t bytes) override;
  void OnIntegrityFailure(TierKind tier, IntegrityKind kind) override;
  void OnSsdRead(absl::Duration took, int64_t bytes, bool ok) override;
  void OnSsdWrite(absl::Duration took, int64_t bytes, bool ok) override;
  void OnWriteQueueFull() override;
  void OnSsdBreaker(policy::BreakerState state, policy::BreakerReason why) override;
  void OnLoadsLate(int64_t count) override;
  void OnLeasesExpired(int64_t count) override;

 private:
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  using Histogram = prometheus::Histogram;
  struct ModelCounters {
    std::array<Counter*, 4> requests{};  // hit, partial, miss, error
    Counter* requested_tokens = nullptr;
  };
  ModelCounters& ModelOf(absl::string_view model) ABSL_LOCKS_EXCLUDED(mutex_);
  std::string TenantLabel(absl::string_view tenant) const;
  std::string ModelLabel(absl::string_view model) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<prometheus::Registry> registry_;
  const absl::flat_hash_set<std::string> tenants_;
  // Families whose series are made when they are first seen.
  prometheus::Family<Counter>& lookup_requests_;
  prometheus::Family<Counter>& requested_tokens_;
  prometheus::Family<Counter>& hit_tokens_;
  prometheus::Family<Counter>& tenant_tokens_;
  prometheus::Family<Counter>& put_bytes_;
  prometheus::Family<Counter>& rpc_requests_;
  prometheus::Family<Counter>& evicted_pages_;
  prometheus::Family<Counter>& evicted_bytes_;
  prometheus::Family<Counter>& integrity_;
  prometheus::Family<Counter>& encoded_pages_;
  prometheus::Family<Counter>& shed_bytes_;
  // Series of enums, made at the start.
  std::array<Counter*, kTierKindCount> hit_pages_{};
  std::array<std::array<Counter*, 2>, 2> precision_lookups_{};  // [high, low][hit, miss]
  std::array<Counter*, 4> cross_share_{};                       // by ScopeKind
  Histogram* prefix_pages_ = nullptr;
  std::array<Counter*, kPutResultCount> put_pages_{};
  Histogram* commit_seconds_ = nullptr;
  Counter* pusher_mismatch_ = nullptr;
  Counter* promoted_ = nullptr;
  Counter* demoted_ = nullptr;
  // [path][direction]
  std::array<std::array<Counter*, 2>, kTransferPathCount> transfer_bytes_{};
  std::array<std::array<Counter*, 2>, kTransferPathCount> transfer_failures_{};
  std::array<std::array<Histogram*, 2>, kTransferPathCount>
      transfer_seconds_{};  // grpc, shm, nccl out
  std::array<Counter*, kDeviceFallbackCount> device_fallbacks_{};
  std::array<Gauge*, 2> inflight_{};
  std::map<Precision, Histogram*> encode_seconds_;
  std::array<Counter*, 3> encode_failures_{};
  Counter* encode_refusals_ = nullptr;
  std::array<Histogram*, kRpcMethodCount> rpc_seconds_{};
  std::array<Gauge*, kRpcMethodCount> rpc_inflight_{};
  std::map<std::string, Counter*> rpc_rejected_;
  std::map<std::string, Counter*, std::less<>> connections_refused_;
  Histogram* ssd_read_ = nullptr;
  Histogram* ssd_write_ = nullptr;
  std::array<Counter*, 2> ssd_errors_{};  // read, write
  Counter* ssd_refusals_ = nullptr;
  std::array<Counter*, policy::kBreakerReasonCount> ssd_breaker_trips_{};
  Counter* ssd_loads_late_ = nullptr;
  std::array<Counter*, kSessionEndReasonCount> sessions_ended_{};
  Counter* leases_expired_ = nullptr;
  std::array<Histogram*, 3> ttft_{};  // cold, partial, warm
  Counter* decode_tokens_ = nullptr;
  Counter* prefill_saved_ = nullptr;

  absl::Mutex mutex_;
  absl::flat_hash_set<std::string> models_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, ModelCounters> model_counters_ ABSL_GUARDED_BY(mutex_);
};

// Counts one call from its start; Finish() once, with its code.
class RpcTimer {
 public:
  RpcTimer(Metrics& metrics, RpcMethod method);
  void Finish(absl::StatusCode code);

 private:
  Metrics& metrics_;
  const RpcMethod method_;
  const absl::Duration start_;
  bool finished_ = false;
};

}  // namespace pagoda
