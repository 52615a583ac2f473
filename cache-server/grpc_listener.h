// The gRPC server with its arguments: large frames for pages, pings that find dead clients, health
// and reflection. Our own acceptor feeds it.
//
// Errors  UNAVAILABLE         the address is in use or not ours
//         RESOURCE_EXHAUSTED  no descriptors
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache-server/acceptor.h"
#include "cache-server/options.h"

namespace pagoda {

struct GrpcListener {
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;  // stops before the server
  std::string address;                 // what a client dials
  std::string unix_path;               // the socket's file, or empty
  int port = 0;                        // 0 for a Unix socket

  // Of the whole server and of the Cache service.
  void SetServing(bool serving);
  // No new connections; calls under way have `grace` to end.
  void Shutdown(absl::Duration grace);
};

absl::StatusOr<GrpcListener> ListenGrpc(const ServerOptions& options,
                                        const std::vector<grpc::Service*>& services,
                                        Acceptor::Refused refused);

}  // namespace pagoda
