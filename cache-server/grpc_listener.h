// The gRPC server with its arguments: large frames for pages, pings that find dead clients, health
// and reflection. Our own acceptor feeds it. Who connects before Accept() waits in the kernel's
// queue.
//
// Errors  UNAVAILABLE         the address is in use or not ours
//         RESOURCE_EXHAUSTED  no descriptors
//         those of server_credentials.h
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
  std::unique_ptr<Acceptor> acceptor;  // null before Accept(); stops before the server
  std::string address;                 // what a client dials
  std::string unix_path;               // the socket's file, or empty
  std::vector<UniqueFd> sockets;       // until Accept()
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to_server;  // until Accept()
  int port = 0;                                                               // 0 for a Unix socket

  // From here on connections come in. Once.
  absl::Status Accept(Acceptor::Refused refused);
  // Of the whole server and of the Cache service.
  void SetServing(bool serving);
  // No new connections; calls under way have `grace` to end.
  void Shutdown(absl::Duration grace);
};

absl::StatusOr<GrpcListener> ListenGrpc(const ServerOptions& options,
                                        const std::vector<grpc::Service*>& services);

}  // namespace pagoda
