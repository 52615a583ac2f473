#include "client/cli/bare_stream.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <cstring>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire.h"

namespace pagoda::cli {
namespace {

constexpr char kReceiveMethod[] = "/bare/Receive";  // the server sends
constexpr char kSendMethod[] = "/bare/Send";        // the client sends
constexpr size_t kPoolBytes = 64 << 20;             // larger than caches: sent bytes come from DRAM

const std::vector<char>& Pool() {
  static const auto* const pool = new std::vector<char>(kPoolBytes, 'x');
  return *pool;
}

grpc::ByteBuffer MessageAt(int64_t index, int64_t bytes) {
  const auto room = static_cast<int64_t>(kPoolBytes) - bytes + 1;
  const int64_t offset = index * bytes % room;
  const grpc::Slice slice(const_cast<char*>(Pool().data()) + offset, static_cast<size_t>(bytes),
                          grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer Encode(const BareTransfer& transfer) {
  const grpc::Slice slice(&transfer, sizeof(transfer));  // both ends are this process
  return grpc::ByteBuffer(&slice, 1);
}

bool Decode(const grpc::ByteBuffer& buffer, BareTransfer& transfer) {
  grpc::Slice slice;
  if (!buffer.DumpToSingleSlice(&slice).ok() || slice.size() != sizeof(transfer)) return false;
  std::memcpy(&transfer, slice.begin(), sizeof(transfer));
  return true;
}

// Takes a message as the receiver of pages would: into memory that exists already.
class Sink {
 public:
  void set_transfer(const BareTransfer& transfer) {
    transfer_ = transfer;
    if (transfer_.copy && transfer_.into == nullptr) {
      memory_.resize(static_cast<size_t>(transfer.message_bytes));
    }
  }
  void Take(const grpc::ByteBuffer& message) {
    if (!transfer_.copy) return;
    std::vector<grpc::Slice> slices;
    if (!message.Dump(&slices).ok()) return;
    std::byte* to = memory_.data();
    if (transfer_.into != nullptr) to = transfer_.into + taken_++ * transfer_.message_bytes;
    size_t left = static_cast<size_t>(transfer_.message_bytes);
    for (const grpc::Slice& slice : slices) {
      if (slice.size() > left) return;
      std::memcpy(to, slice.begin(), slice.size());
      to += slice.size();
      left -= slice.size();
    }
  }

 private:
  BareTransfer transfer_;
  int64_t taken_ = 0;
  std::vector<std::byte> memory_;
};

// The server's side of both directions: the first message says what is wanted.
class ServerStream : public grpc::ServerGenericBidiReactor {
 public:
  explicit ServerStream(bool sends) : sends_(sends) { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    if (!started_) {
      started_ = true;
      if (!ok || !Decode(message_, transfer_)) {
        Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "bare stream: no request"));
        return;
      }
      sink_.set_transfer(transfer_);
      sends_ ? SendNext() : StartRead(&message_);
      return;
    }
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    sink_.Take(message_);
    StartRead(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      SendNext();
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  void SendNext() {
    if (sent_ == transfer_.message_count) {
      Finish(grpc::Status::OK);
      return;
    }
    message_ = MessageAt(sent_++, transfer_.message_bytes);
    StartWrite(&message_, grpc::WriteOptions().set_no_compression());
  }

  const bool sends_;
  bool started_ = false;
  BareTransfer transfer_;
  int64_t sent_ = 0;
  Sink sink_;
  grpc::ByteBuffer message_;
};

class Service : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new ServerStream(context->method() == kReceiveMethod);
  }
};

class ClientStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ClientStream(grpc::GenericStub& stub, const BareTransfer& transfer, bool sends)
      : transfer_(transfer), sends_(sends), outgoing_(Encode(transfer)) {
    sink_.set_transfer(transfer);
    stub.PrepareBidiStreamingCall(&context_, sends ? kSendMethod : kReceiveMethod, {}, this);
    if (sends_) {
      StartWrite(&outgoing_);
    } else {
      StartWriteLast(&outgoing_, {});
    }
    StartRead(&incoming_);
    StartCall();
  }

  absl::Status Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
    if (!status_.ok()) return FromGrpc(status_);
    if (sends_ || received_ == transfer_.message_count) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("bare stream: ", received_, " of ", transfer_.message_count, " messages"));
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++received_;
    sink_.Take(incoming_);
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok || !sends_) return;
    if (sent_ == transfer_.message_count) {
      StartWritesDone();
      return;
    }
    outgoing_ = MessageAt(sent_++, transfer_.message_bytes);
    StartWrite(&outgoing_, grpc::WriteOptions().set_no_compression());
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
  }

 private:
  const BareTransfer transfer_;
  const bool sends_;
  grpc::ClientContext context_;
  // Each touched by one kind of reaction alone; received_ is read after OnDone().
  grpc::ByteBuffer outgoing_;
  int64_t sent_ = 0;
  grpc::ByteBuffer incoming_;
  int64_t received_ = 0;
  Sink sink_;

  absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

// The arguments that pagodad gives its server.
void AddDataArguments(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 8 << 20);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 16 << 20);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 1 << 20);
  builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, 4 << 20);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 8 << 20);
}

}  // namespace

struct BareServer::Parts {
  Service service;
  std::unique_ptr<grpc::Server> server;
};

absl::StatusOr<std::unique_ptr<BareServer>> BareServer::Start(const std::string& address) {
  auto parts = std::make_unique<Parts>();
  grpc::ServerBuilder builder;
  AddDataArguments(builder);
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&parts->service);
  parts->server = builder.BuildAndStart();
  const bool is_unix = absl::StartsWith(address, "unix:");
  if (parts->server == nullptr || (!is_unix && port == 0)) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
  }
  std::string dialled =
      is_unix ? address : absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return std::unique_ptr<BareServer>(new BareServer(std::move(parts), std::move(dialled)));
}

BareServer::BareServer(std::unique_ptr<Parts> parts, std::string address)
    : parts_(std::move(parts)), address_(std::move(address)) {}

BareServer::~BareServer() {
  parts_->server->Shutdown();
  parts_->server->Wait();
}

absl::Status BareReceive(grpc::GenericStub& stub, const BareTransfer& transfer) {
  return ClientStream(stub, transfer, /*sends=*/false).Wait();
}

absl::Status BareSend(grpc::GenericStub& stub, const BareTransfer& transfer) {
  return ClientStream(stub, transfer, /*sends=*/true).Wait();
}

}  // namespace pagoda::cli
