// Pages between the GPUs of two nodes: a connection of two ranks, one request at a time, each by
// one contiguous staging buffer (16,384 slices a transfer are what breaks NCCL). Who asks whom for
// what is agreed elsewhere, by a call; both sides then Start their half.
//
//   sender   pieces --gather--> staging --Send-->
//   receiver             --Receive--> staging --scatter--> pieces
//
// Every failure ends in an abort, a status and a pause; the caller takes the next path (host memory
// and gRPC) meanwhile, and joins again with a new id. Nothing waits: Poll does what there is to do.
//
// Units      bytes
// Threads    one at a time
// Ownership  runtime, transport and clock outlive the link; a request holds what keeps its pieces
//            alive until the device is done with them, beyond its failure too
// Errors     FAILED_PRECONDITION  not ready, or a request is under way
//            RESOURCE_EXHAUSTED   more than staging_bytes
//            UNAVAILABLE          broken: the pause is not over, or the connection failed
//            DEADLINE_EXCEEDED    to `done`
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "storage/base/clock.h"
#include "storage/device/link_machine.h"
#include "storage/device/peer_transport.h"
#include "storage/device/runtime.h"

namespace pagoda {

struct PeerLinkOptions {
  int64_t staging_bytes = int64_t{32} << 20;  // the largest request
  LinkTimes times;
  absl::Duration drain_timeout = absl::Seconds(10);  // of the destructor; then memory is leaked
  absl::Status Validate() const;
};

struct DevicePiece {
  std::byte* data = nullptr;  // null, of a receiver: these bytes come and are dropped
  int64_t bytes = 0;
};

struct PeerRequest {
  enum class Half : uint8_t { kSend, kReceive };
  Half half = Half::kSend;
  std::vector<DevicePiece> pieces;                // in the same order and sizes on both sides
  std::vector<std::shared_ptr<const void>> keep;  // owners of the pieces
  absl::Duration timeout = absl::Seconds(5);
  std::function<void(const absl::Status&)> done;  // once, from Poll; may be empty
};

struct PeerLinkStats {
  int64_t bytes = 0;  // of requests that ended well
  int64_t done_count = 0;
  int64_t failed_count = 0;  // requests
  int64_t abort_count = 0;   // connections
};

class PeerLink {
 public:
  static absl::StatusOr<std::unique_ptr<PeerLink>> Create(DeviceRuntime& runtime,
                                                          PeerTransport& transport,
                                                          const Clock& clock,
                                                          const PeerLinkOptions& options);
  ~PeerLink();

  absl::StatusOr<PeerLinkId> NewId() { return transport_.NewId(); }
  // Returns at once; phase() becomes kReady or kBroken.
  absl::Status Join(const PeerLinkId& id, int rank);
  // On an error `done` is not called.
  absl::Status Start(PeerRequest request);
  void Poll();
  // Breaks what there is, as a fault does; `done` of a request hears why.
  void Abort(const absl::Status& why);

  LinkMachine::Phase phase() const { return machine_.phase(); }
  const absl::Status& fault() const { return machine_.fault(); }
  const PeerLinkStats& stats() const { return stats_; }

 private:
  PeerLink(DeviceRuntime& runtime, PeerTransport& transport, const Clock& clock,
           const PeerLinkOptions& options);
  absl::Status Begin();
  absl::Status Follow();
  absl::StatusOr<bool> Progress();
  void Do(LinkMachine::Action action);
  void End(const absl::Status& status);
  std::vector<CopyPiece> StagedPieces() const;

  DeviceRuntime& runtime_;
  PeerTransport& transport_;
  const Clock& clock_;
  const PeerLinkOptions options_;
  LinkMachine machine_;
  std::unique_ptr<DeviceBuffer> staging_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> event_;
  PeerRequest request_;
  int64_t request_bytes_ = 0;
  bool recorded_ = false;  // the event stands behind all work of the request
  PeerLinkStats stats_;
};

}  // namespace pagoda
