// The flags that name a daemon, and calls of its Admin service with errors that say what to do.
//
// Threads    any
// Errors     every message is one line: the daemon's address, what is wrong, the remedy
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/channel.h"
#include "pagoda/v1/admin.grpc.pb.h"
#include "proto/wire.h"

namespace pagoda::cli {

struct ConnectionOptions {
  std::string daemon = "127.0.0.1:7070";  // host:port or unix:/path
  std::string token;                      // empty: none
  client::TlsOptions tls;                 // without a ca: none
  double timeout_seconds = 5;             // of one call
};

// --daemon, --token, --timeout, --tls-...
void AddConnectionFlags(CLI::App& app, ConnectionOptions& options);

void AddTlsFlags(CLI::App& app, client::TlsOptions& tls);

// What a user can do about an error of a call to this daemon.
absl::Status ExplainError(const absl::Status& status, const ConnectionOptions& options);

class AdminConnection {
 public:
  explicit AdminConnection(ConnectionOptions options);

  const ConnectionOptions& options() const { return options_; }

  // `extra` is added to the timeout of calls that wait on purpose.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                        const Request&, Response*),
                                const Request& request,
                                absl::Duration extra = absl::ZeroDuration()) {
    if (!settings_.ok()) return settings_;
    grpc::ClientContext context;
    Prepare(context, extra);
    Response response;
    const grpc::Status status = ((*stub_).*method)(&context, request, &response);
    if (!status.ok()) return ExplainError(FromGrpc(status), options_);
    return response;
  }

  absl::StatusOr<v1::StatusResponse> Status();
  absl::StatusOr<std::vector<v1::ModelStatus>> Models();
  absl::StatusOr<std::vector<v1::PageRecord>> Pages(const v1::ListPagesRequest& request);

 private:
  void Prepare(grpc::ClientContext& context, absl::Duration extra) const;

  const ConnectionOptions options_;
  const absl::Status settings_;  // not OK: nothing is sent
  const std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace pagoda::cli
