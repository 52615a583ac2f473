// The gRPC server with its arguments: large frames for pages, pings that find dead clients, no
// sharing of ports, health and reflection.
//
// Errors  UNAVAILABLE  the address is in use or not ours
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache-server/listen_address.h"
#include "cache-server/options.h"

namespace pagoda {

struct GrpcListener {
  std::unique_ptr<grpc::Server> server;
  std::string address;  // what a client dials
  int port = 0;         // 0 for a Unix socket

  // Of the whole server and of the Cache service.
  void SetServing(bool serving);
};

absl::StatusOr<GrpcListener> ListenGrpc(const ServerOptions& options,
                                        const std::vector<grpc::Service*>& services);

}  // namespace pagoda
