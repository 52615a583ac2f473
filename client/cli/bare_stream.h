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

// A connection of its own with one open stream for each direction. One transfer at a time.
class BareClient {
 public:
  explicit BareClient(const std::string& address);
  ~BareClient();
  // Return when all messages have arrived.
  absl::Status Receive(const BareTransfer& transfer);
  absl::Status Send(const BareTransfer& transfer);

 private:
  class Line;
  absl::Status Run(std::unique_ptr<Line>& line, bool sends, const BareTransfer& transfer);

  grpc::GenericStub stub_;
  std::unique_ptr<Line> receives_;
  std::unique_ptr<Line> sends_;
};

}  // namespace pagoda::cli
