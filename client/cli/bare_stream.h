// The bound that the daemon's data path is measured against: gRPC alone, moving messages of the
// same size with the same channel arguments over the same kind of socket, and nothing else. Sent
// slices are not copied; the receiver copies each message into memory of its own, or only counts
// it.
//
// Threads    any
// Errors     UNAVAILABLE  the address cannot be listened on, or a stream broke
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pagoda::cli {

class BareServer {
 public:
  // "127.0.0.1:0" takes a free port.
  static absl::StatusOr<std::unique_ptr<BareServer>> Start(const std::string& address);
  ~BareServer();
  const std::string& address() const { return address_; }

 private:
  struct Parts;
  BareServer(std::unique_ptr<Parts> parts, std::string address);

  const std::unique_ptr<Parts> parts_;
  const std::string address_;
};

struct BareTransfer {
  int64_t message_bytes = 0;
  int64_t message_count = 0;
  bool copy = true;  // the receiver copies
  // Where to: one message after another, as pages go. Null: each into the same memory, which then
  // stays in the cache.
  std::byte* into = nullptr;
};

// One stream on its own call; returns when all messages have arrived.
absl::Status BareReceive(grpc::GenericStub& stub, const BareTransfer& transfer);
absl::Status BareSend(grpc::GenericStub& stub, const BareTransfer& transfer);

}  // namespace pagoda::cli
