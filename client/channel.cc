#include "client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/channel_arguments.h>

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/callback_queue.h"
#include "proto/wire.h"

namespace pagoda::client {
namespace {

constexpr unsigned kWatchSeconds = 1;  // how often certificates are looked at

grpc::ChannelArguments BaseArguments() {
  KeepCallbackQueue();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(64 << 20);
  // A daemon that comes back is found within a second, not after gRPC's two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // How long one attempt may take, whatever its name says: on a busy machine that many clients come
  // back to at once, a tenth of a second is too short.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  // A daemon whose machine vanished without a word is noticed, and the connection made anew.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Every client has connections of its own: one worker's stall is not another's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const TlsOptions& tls,
                                           grpc::ChannelArguments arguments) {
  if (!tls.enabled() || absl::StartsWith(target, "unix:")) {
    return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  }
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(tls.key, tls.certificate,
                                                                           tls.ca, kWatchSeconds));
  options.watch_root_certs();
  if (!tls.certificate.empty()) options.watch_identity_key_cert_pairs();
  if (!tls.server_name.empty()) arguments.SetSslTargetNameOverride(tls.server_name);
  return grpc::CreateCustomChannel(target, grpc::experimental::TlsCredentials(options), arguments);
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& target,
                                                  const TlsOptions& tls) {
  return MakeChannel(target, tls, BaseArguments());
}

std::shared_ptr<grpc::Channel> MakeDataChannel(const std::string& target, const TlsOptions& tls) {
  grpc::ChannelArguments arguments = BaseArguments();
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 8 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 16 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, 4 << 20);
  arguments.SetInt(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 1 << 20);
  arguments.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 8 << 20);
  return MakeChannel(target, tls, std::move(arguments));
}

void PrepareContext(grpc::ClientContext& context, const std::string& token,
                    absl::Duration timeout) {
  if (timeout != absl::InfiniteDuration()) {
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  }
  if (!token.empty()) context.AddMetadata(kTokenMetadataKey, absl::StrCat("Bearer ", token));
}

}  // namespace pagoda::client
