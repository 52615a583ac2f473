// Between the client's own types and the messages of cache.proto. What a daemon says is checked
// here.
//
// Threads  pure functions   Errors  DATA_LOSS, INVALID_ARGUMENT  an answer that cannot be
//          FAILED_PRECONDITION  a daemon of another protocol
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda::client {

template <typename Id>
std::string Bytes(const Id& id) {
  return std::string(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size());
}

// `with_model`: the client announced one, and identity and scopes are there.
absl::StatusOr<ServerInfo> ServerInfoFromWire(const v1::HelloResponse& hello, bool with_model);
// `asked_at`: when the lookup was sent, which is when its lease may have begun.
absl::StatusOr<LookupResult> LookupResultFromWire(const v1::LookupResponse& response,
                                                  const LookupQuery& query,
                                                  absl::Duration asked_at);
void FillPart(const PagePart& part, v1::Part& wire);
void FillChains(absl::Span<const ScopeChain> chains,
                google::protobuf::RepeatedPtrField<v1::KeyChain>& wire);

// What all pages of a pusher have in common.
v1::HelloRequest HelloMessage(const ClientOptions& options);
v1::ReportRequest TtftMessage(const std::string& session_id, const Identity& identity,
                              const SequenceId& sequence, double seconds, uint32_t prompt_tokens,
                              uint32_t hit_tokens);

struct PushConfig {
  std::string token;
  std::string session_id;
  SequenceId sequence;
  Identity identity;
  uint32_t page_tokens = 0;
  uint64_t backend_tag = 0;
  int64_t queue_bytes_max = 0;
  // Of a page that was taken: how many bytes, and how long it took since it was pushed.
  std::function<void(int64_t bytes, absl::Duration took)> on_grpc_page;
  absl::Duration answer_timeout;  // the oldest unanswered page may wait this long
};
// A request with `page` alone, or with `sequence_id` too.
v1::PushRequest PushPageMessage(const PushConfig& config, const PushItem& item);
v1::PushRequest PushMessage(const PushConfig& config, const PushItem& item);

}  // namespace pagoda::client
