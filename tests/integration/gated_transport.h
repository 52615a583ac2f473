// A transport with a gate: while it is shut, nothing that is sent or received begins, as if the
// network stood still.
//
// Threads    the gate: any; else as PeerTransport
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "storage/device/peer_transport.h"

namespace pagoda {

class GatedTransport final : public PeerTransport {
 public:
  // Acquire and release: what was written before it opened is there.
  using Gate = std::shared_ptr<std::atomic<bool>>;
  static Gate OpenGate() { return std::make_shared<std::atomic<bool>>(true); }

  GatedTransport(std::unique_ptr<PeerTransport> inner, Gate gate)
      : inner_(std::move(inner)), gate_(std::move(gate)) {}

  absl::StatusOr<PeerLinkId> NewId() override { return inner_->NewId(); }
  absl::Status Join(const PeerLinkId& id, int rank) override { return inner_->Join(id, rank); }
  absl::StatusOr<bool> Poll() override {
    if (held_ == nullptr) return inner_->Poll();
    if (!gate_->load(std::memory_order_acquire)) return false;
    const absl::Status begun = std::exchange(held_, nullptr)();
    if (!begun.ok()) return begun;
    return inner_->Poll();
  }
  absl::Status Send(const std::byte* source, int64_t bytes, DeviceStream& stream) override {
    held_ = [this, source, bytes, &stream] { return inner_->Send(source, bytes, stream); };
    return absl::OkStatus();
  }
  absl::Status Receive(std::byte* target, int64_t bytes, DeviceStream& stream) override {
    held_ = [this, target, bytes, &stream] { return inner_->Receive(target, bytes, stream); };
    return absl::OkStatus();
  }
  void Abort() override {
    held_ = nullptr;
    inner_->Abort();
  }

 private:
  const std::unique_ptr<PeerTransport> inner_;
  const Gate gate_;
  std::function<absl::Status()> held_;  // what waits for the gate
};

}  // namespace pagoda
