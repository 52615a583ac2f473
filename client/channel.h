// gRPC channels to a daemon, and the context every call carries. Control and data use separate
// channels: tuned for megabytes, small messages get slower.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/tls_options.h"

namespace pagoda::client {

// TLS is for TCP: a Unix socket's channel is plain.
std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& target,
                                                  const TlsOptions& tls = {});
// HTTP/2 frames, reads and writes of megabytes; no bandwidth probing; its own connection.
std::shared_ptr<grpc::Channel> MakeDataChannel(const std::string& target,
                                               const TlsOptions& tls = {});

// Deadline from now (none when infinite) and the caller's token.
void PrepareContext(grpc::ClientContext& context, const std::string& token, absl::Duration timeout);

}  // namespace pagoda::client
