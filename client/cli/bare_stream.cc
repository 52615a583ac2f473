#include "client/cli/bare_stream.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <cstring>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/channel.h"
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
    taken_ = 0;
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

// The server's side of both directions: a message says what is wanted, then that is moved, and so
// on. What was sent is answered by an empty message.
class ServerStream : public grpc::ServerGenericBidiReactor {
 public:
  explicit ServerStream(bool sends) : sends_(sends) { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (left_ > 0) {
      sink_.Take(message_);
      --left_;
    } else {
      BareTransfer transfer;
      if (!Decode(message_, transfer)) {
        return Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "bare stream: no request"));
      }
      transfer_ = transfer;
      left_ = transfer.message_count;
      sink_.set_transfer(transfer);
      if (sends_) return SendNext();
    }
    if (left_ > 0) return StartRead(&message_);
    message_ = grpc::ByteBuffer();
    const grpc::Slice nothing("");
    answer_ = grpc::ByteBuffer(&nothing, 1);
    StartWrite(&answer_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    sends_ ? SendNext() : StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  void SendNext() {
    if (left_ == 0) return StartRead(&message_);
    --left_;
    answer_ = MessageAt(sent_++, transfer_.message_bytes);
    StartWrite(&answer_, grpc::WriteOptions().set_no_compression());
  }

  const bool sends_;
  BareTransfer transfer_;
  int64_t left_ = 0;
  int64_t sent_ = 0;
  Sink sink_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
};

class Service : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new ServerStream(context->method() == kReceiveMethod);
  }
};

}  // namespace

// One direction of a client: one call for all its transfers.
class BareClient::Line : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Line(grpc::GenericStub& stub, bool sends) : sends_(sends) {
    stub.PrepareBidiStreamingCall(&context_, sends ? kSendMethod : kReceiveMethod, {}, this);
    AddHold();  // until the last read: transfers begin outside of gRPC's calls
    StartRead(&incoming_);
    StartCall();
  }
  ~Line() override {
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }

  absl::Status Run(const BareTransfer& transfer) {
    bool begun;
    {
      absl::MutexLock lock(&mutex_);
      begun = !over_;
      if (begun) {
        transfer_ = transfer;
        sink_.set_transfer(transfer);
        left_ = sends_ ? 1 : transfer.message_count;
        to_send_ = sends_ ? transfer.message_count : 0;
        writing_ = true;
        AddHold();  // the read may end now, and with it the other hold
      }
    }
    if (begun) {
      outgoing_ = Encode(transfer);
      StartWrite(&outgoing_);
      RemoveHold();
    }
    absl::MutexLock lock(&mutex_);
    const auto moved = [this, begun]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return (begun && left_ == 0 && !writing_) || done_;
    };
    mutex_.Await(absl::Condition(&moved));
    if (!done_) return absl::OkStatus();
    if (!status_.ok()) return FromGrpc(status_);
    return absl::UnavailableError("bare stream: the server ended it");
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        absl::MutexLock lock(&mutex_);
        over_ = true;
      }
      return RemoveHold();
    }
    sink_.Take(incoming_);
    {
      absl::MutexLock lock(&mutex_);
      --left_;
    }
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = ok && to_send_ > 0;
      if (!writing_) return;
      --to_send_;
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
  const bool sends_;
  grpc::ClientContext context_;
  // Each touched by one kind of reaction alone, and by Run() while there is none.
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
  BareTransfer transfer_;
  int64_t sent_ = 0;
  Sink sink_;

  absl::Mutex mutex_;
  int64_t left_ ABSL_GUARDED_BY(mutex_) = 0;     // messages to come
  int64_t to_send_ ABSL_GUARDED_BY(mutex_) = 0;  // beside the one being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

BareClient::BareClient(const std::string& address) : stub_(client::MakeDataChannel(address, {})) {}
BareClient::~BareClient() = default;

absl::Status BareClient::Receive(const BareTransfer& transfer) {
  return Run(receives_, false, transfer);
}

absl::Status BareClient::Send(const BareTransfer& transfer) { return Run(sends_, true, transfer); }

absl::Status BareClient::Run(std::unique_ptr<Line>& line, bool sends,
                             const BareTransfer& transfer) {
  if (line == nullptr) line = std::make_unique<Line>(stub_, sends);
  absl::Status status = line->Run(transfer);
  if (!status.ok()) line.reset();
  return status;
}

namespace {

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

}  // namespace pagoda::cli
