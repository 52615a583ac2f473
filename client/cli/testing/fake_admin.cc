#include "client/cli/testing/fake_admin.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/check.h"

namespace pagoda::cli {

FakeAdmin::FakeAdmin() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  PAGODA_CHECK(server_ != nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
}

grpc::Status FakeAdmin::Begin(const grpc::ServerContext& context) {
  ++call_count;
  const auto found = context.client_metadata().find("authorization");
  authorization = found == context.client_metadata().end()
                      ? ""
                      : std::string(found->second.data(), found->second.size());
  absl::SleepFor(absl::Milliseconds(delay_milliseconds));
  return failure;
}

grpc::Status FakeAdmin::Status(grpc::ServerContext* context, const v1::StatusRequest*,
                               v1::StatusResponse* response) {
  absl::MutexLock lock(&mutex_);
  *response = status;
  return Begin(*context);
}

grpc::Status FakeAdmin::ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                                   v1::ListModelsResponse* response) {
  absl::MutexLock lock(&mutex_);
  *response = models;
  return Begin(*context);
}

grpc::Status FakeAdmin::ListPages(grpc::ServerContext* context, const v1::ListPagesRequest* request,
                                  grpc::ServerWriter<v1::ListPagesResponse>* writer) {
  absl::MutexLock lock(&mutex_);
  pages_request = *request;
  for (int i = 0; i < pages.pages_size(); i += 2) {
    v1::ListPagesResponse batch;
    for (int j = i; j < std::min(i + 2, pages.pages_size()); ++j) {
      *batch.add_pages() = pages.pages(j);
    }
    writer->Write(batch);
  }
  return Begin(*context);
}

grpc::Status FakeAdmin::SetLadder(grpc::ServerContext* context, const v1::SetLadderRequest* request,
                                  v1::SetLadderResponse* response) {
  absl::MutexLock lock(&mutex_);
  ladder_request = *request;
  *response = ladder;
  return Begin(*context);
}

grpc::Status FakeAdmin::SetPolicy(grpc::ServerContext* context, const v1::SetPolicyRequest* request,
                                  v1::SetPolicyResponse* response) {
  absl::MutexLock lock(&mutex_);
  policy_request = *request;
  *response = policy;
  return Begin(*context);
}

grpc::Status FakeAdmin::Pin(grpc::ServerContext* context, const v1::PinRequest* request,
                            v1::PinResponse* response) {
  absl::MutexLock lock(&mutex_);
  pin_request = *request;
  *response = pinned;
  return Begin(*context);
}

grpc::Status FakeAdmin::Unpin(grpc::ServerContext* context, const v1::PinRequest* request,
                              v1::PinResponse* response) {
  absl::MutexLock lock(&mutex_);
  unpin_request = *request;
  *response = pinned;
  return Begin(*context);
}

grpc::Status FakeAdmin::Evict(grpc::ServerContext* context, const v1::EvictRequest* request,
                              v1::EvictResponse* response) {
  absl::MutexLock lock(&mutex_);
  evict_request = *request;
  *response = evicted;
  return Begin(*context);
}

grpc::Status FakeAdmin::Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                              v1::DrainResponse* response) {
  absl::MutexLock lock(&mutex_);
  drain_request = *request;
  *response = drained;
  return Begin(*context);
}

grpc::Status FakeAdmin::Flush(grpc::ServerContext* context, const v1::FlushRequest* request,
                              v1::FlushResponse* response) {
  absl::MutexLock lock(&mutex_);
  flush_request = *request;
  *response = flushed;
  return Begin(*context);
}

}  // namespace pagoda::cli
