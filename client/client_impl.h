// The client behind client.h: one session, its channels, and what hangs on them. client.cc has its
// calls, client_session.cc its connection, client_fetch.cc how pages come.
//
// Threads    as Client; a background thread of its own
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"
#include "client/device_channel.h"
#include "client/executor.h"
#include "client/fetch_stream.h"
#include "client/path_stats.h"
#include "client/peer_channel.h"
#include "client/push_stream.h"
#include "client/session.h"
#include "client/shm_channel.h"
#include "client/shm_push.h"
#include "pagoda/v1/cache.grpc.pb.h"
#include "storage/base/check.h"
#include "storage/base/digest.h"

namespace pagoda::client {

template <typename Id>
Id RandomId() {
  const absl::StatusOr<Sha256Digest> random = RandomBytes32();
  PAGODA_CHECK(random.ok());
  Id id;
  std::copy_n(random->begin(), Id::kBytes, id.bytes.begin());
  return id;
}

// See client.h.
class ClientImpl : public Client {
 public:
  explicit ClientImpl(ClientOptions options);
  ~ClientImpl() override;

  absl::Status WaitConnected(absl::Duration timeout) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool connected() const override ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<ServerInfo> server_info() const override ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<ScopeInfo> FindScope(const Scope& scope) const override;

  SequenceId OpenSequence(uint64_t length_tokens, uint32_t window_tokens,
                          Precision precision) override ABSL_LOCKS_EXCLUDED(mutex_);
  void AdvanceSequence(const SequenceId& id, uint64_t length_tokens) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseSequence(const SequenceId& id) override ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<LookupResult> Lookup(const LookupQuery& query) override;
  absl::StatusOr<FetchResult> Fetch(const LookupResult& hit, absl::Span<const PageKey> keys,
                                    const FetchOptions& options) override;
  absl::StatusOr<std::unique_ptr<PageFetch>> StartFetch(const LookupResult& hit,
                                                        absl::Span<const PageKey> keys,
                                                        const FetchOptions& options) override;
  void FetchThen(const LookupResult& hit, absl::Span<const PageKey> keys,
                 const FetchOptions& options, FetchCallback callback) override;
  absl::StatusOr<std::unique_ptr<MappedPages>> Map(const LookupResult& hit,
                                                   absl::Span<const PageKey> keys,
                                                   const FetchOptions& options) override;
  absl::StatusOr<std::unique_ptr<DevicePages>> MapDevice(const LookupResult& hit,
                                                         absl::Span<const PageKey> keys,
                                                         const FetchOptions& options) override;
  absl::StatusOr<std::vector<absl::StatusOr<PageOnDevice>>> FetchDevice(
      const LookupResult& hit, absl::Span<const PageKey> keys, const FetchOptions& options,
      const DeviceTargets& targets) override;
  void Release(const LeaseId& lease) override;
  absl::Status Renew(const LeaseId& lease) override;
  absl::Status Prefetch(absl::Span<const ScopeChain> chains, absl::Duration deadline,
                        absl::Span<const PagePart> parts) override;
  void ReportTtft(const SequenceId& id, double seconds, uint32_t prompt_tokens,
                  uint32_t hit_tokens) override;
  absl::StatusOr<std::unique_ptr<Pusher>> OpenPusher(const SequenceId& sequence,
                                                     PushCallback callback) override;
  ClientStats stats() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Sequence {
    uint64_t length_tokens = 0;
    uint32_t window_tokens = 0;
    Precision precision = Precision::kRaw16;
  };
  // What calls need of an open session.
  struct Connection {
    std::string session_id;
    Identity identity;
    std::shared_ptr<ShmChannel> shm;        // null: not on this machine, or broken
    std::shared_ptr<ShmChannel> shm_loads;  // for pages that come up from SSD; null: not possible
    std::string shm_path;                   // of the daemon's socket; empty: none
  };
  // Pages of a lease that the caller wants.
  struct Pages {
    Connection connection;
    uint32_t begin = 0;
    uint32_t count = 0;
    std::vector<RecordKey> records;
    absl::Duration end;  // on the monotonic clock
  };

  static ShmChannel::Wanted WantedOf(const LookupResult& hit, const Pages& pages);
  void Run();  // the background thread
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ServerInfo> Hello();
  struct Shm {
    std::shared_ptr<ShmChannel> channel;
    std::shared_ptr<ShmChannel> loads;
    std::string path;
  };
  Shm ConnectShm(const ServerInfo& server, const std::string& session_id);
  std::shared_ptr<ShmPushChannel> PushChannel(const Connection& connection)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Of `count` pages of the hit from `begin` on.
  std::vector<RecordKey> RecordsOf(const LookupResult& hit, absl::Span<const PageKey> keys,
                                   uint32_t begin, uint32_t count) const;
  absl::StatusOr<Pages> WantedPages(const LookupResult& hit, absl::Span<const PageKey> keys,
                                    const FetchOptions& options) const;
  absl::StatusOr<std::unique_ptr<ShmView>> LocatePages(const LookupResult& hit,
                                                       absl::Span<const PageKey> keys,
                                                       const Pages& pages, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Null where that does not work: go on over gRPC.
  std::unique_ptr<PageFetch> StartShmFetch(const LookupResult& hit, absl::Span<const PageKey> keys,
                                           const Pages& pages, const FetchOptions& options)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<PageFetch> StartShmLoad(const LookupResult& hit, const Pages& pages,
                                          const FetchOptions& options);
  std::unique_ptr<PageFetch> StartGrpcFetch(const LeaseId& lease, const Pages& pages,
                                            const FetchOptions& options, uint32_t done);
  void Watch(const std::shared_ptr<Session>& session) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Connection> Current() const ABSL_LOCKS_EXCLUDED(mutex_);
  v1::SessionRequest OpenRequest(const SequenceId& id, const Sequence& sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendToSession(v1::SessionRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountShmFallback() ABSL_LOCKS_EXCLUDED(mutex_);
  void CountFetch(const FetchResult& result, uint32_t by_shm, absl::Duration took)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Count(int64_t ClientStats::*counter, int64_t amount = 1) ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> control_channel_;
  const std::unique_ptr<v1::Cache::Stub> stub_;
  const std::shared_ptr<grpc::Channel> data_channel_;
  const std::unique_ptr<grpc::GenericStub> data_stub_;
  const std::shared_ptr<FetchStreams> fetch_streams_;

  // Guarded by mutex_. Locked before a Session's own mutex; no RPC is made while it is held.
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);  // null: not connected
  std::string session_id_ ABSL_GUARDED_BY(mutex_);
  Shm shm_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ShmPushChannel> shm_push_ ABSL_GUARDED_BY(mutex_);  // once somebody pushes
  // All that were opened and may still call back: kept here, so that none ends on its own thread.
  std::vector<std::shared_ptr<ShmPushChannel>> shm_pushes_ ABSL_GUARDED_BY(mutex_);
  // Where pages of a lease lie: it keeps them there, so that nobody asks twice.
  struct Located {
    uint32_t begin = 0;
    std::shared_ptr<const ShmPages> pages;
  };
  std::map<LeaseId, Located> located_ ABSL_GUARDED_BY(mutex_);
  std::optional<ServerInfo> server_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  std::map<SequenceId, Sequence> sequences_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<PushStream>> pushes_ ABSL_GUARDED_BY(mutex_);
  ClientStats stats_ ABSL_GUARDED_BY(mutex_);

  DeviceLink device_{options_.device, options_.reconnect_interval};
  PeerChannel peer_{*stub_,
                    {options_.device, options_.peer, options_.token, options_.reconnect_interval,
                     options_.control_timeout}};
  // Synchronised by themselves.
  PathCounter shm_path_;
  PathCounter nccl_path_;
  PathCounter grpc_path_;
  Executor executor_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace pagoda::client
