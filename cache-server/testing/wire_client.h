// A blocking client on the generated stubs, for tests: every call has a deadline, nothing is
// hidden, nothing is retried.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache-server/testing/test_pages.h"
#include "pagoda/v1/admin.grpc.pb.h"
#include "pagoda/v1/cache.grpc.pb.h"
#include "storage/base/page_header.h"

namespace pagoda {

struct FetchedPage {
  PageHeader header;
  std::vector<std::string> segments;  // as in header.segments
  int32_t code = -1;                  // of PageEnd; -1 when none came
  std::string message;
};

class WireClient {
 public:
  explicit WireClient(const std::string& address, std::string token = "");
  ~WireClient();

  v1::Cache::Stub& cache() { return *cache_; }
  v1::Admin::Stub& admin() { return *admin_; }
  // With the token and a deadline.
  std::unique_ptr<grpc::ClientContext> Context(double seconds = 20) const;

  absl::StatusOr<v1::HelloResponse> Hello(const ModelSpec& spec);
  // Opens the session stream and keeps it. The id is then used by the calls below.
  absl::Status OpenSession();
  bool Send(const v1::SessionRequest& request) { return session_->Write(request); }
  bool Receive(v1::SessionResponse* response) { return session_->Read(response); }
  grpc::Status CloseSession();  // half-closes and waits for the end
  void BreakSession();          // as when the client dies
  const std::string& session_id() const { return session_id_; }
  void set_session_id(std::string id) { session_id_ = std::move(id); }
  void OpenSequence(const std::string& id, uint64_t length, uint32_t window,
                    v1::Precision precision);

  // One answer per page; an error when the stream fails.
  absl::StatusOr<std::vector<v1::PushResponse>> Push(const std::vector<TestPage>& pages,
                                                     const std::string& sequence_id = "");

  v1::LookupRequest LookupFor(const ModelSpec& spec, const v1::ScopeInfo& scope,
                              const std::vector<std::string>& keys,
                              const std::string& request_id = "request-id-00001");
  absl::StatusOr<v1::LookupResponse> Lookup(const v1::LookupRequest& request);
  // Until nothing is LOADING, and the precision of the first page is `precision` if that is set.
  absl::StatusOr<v1::LookupResponse> LookupUntil(
      const v1::LookupRequest& request, v1::Precision precision = v1::PRECISION_UNSPECIFIED);

  v1::FetchRequest FetchFor(const v1::LookupResponse& lookup);
  absl::StatusOr<std::vector<FetchedPage>> Fetch(const v1::FetchRequest& request);
  absl::StatusOr<v1::StatusResponse> Status();
  // "serving", "not serving", or the error of the health service.
  std::string Health(const std::string& service);

 private:
  const std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cache::Stub> cache_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::string session_id_;
  std::unique_ptr<grpc::ClientContext> session_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>> session_;
};

}  // namespace pagoda
