#include "cache-server/shm_push.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cache-server/page_push.h"
#include "cache-server/push_answer.h"
#include "cache-server/request_fields.h"
#include "proto/shm_push_packet.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

absl::Status NoMemory(absl::string_view call) {
  return absl::UnavailableError(
      absl::StrFormat("staging area: %s: %s", std::string(call), std::strerror(errno)));
}

}  // namespace

ShmPushes::~ShmPushes() {
  if (area_.data == nullptr) return;
  ::munmap(const_cast<std::byte*>(area_.data), static_cast<size_t>(area_.bytes));
  budget_.Return(area_.bytes);
}

absl::StatusOr<UniqueFd> ShmPushes::MakeArea(uint64_t bytes) {
  if (area_.data != nullptr) {
    return absl::FailedPreconditionError("staging area: this connection has one");
  }
  if (bytes == 0 || bytes > shm::kStagingBytesMax || bytes % 4096 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("staging area of %d bytes: expected whole pages of 4096, at most %d", bytes,
                        shm::kStagingBytesMax));
  }
  const auto size = static_cast<int64_t>(bytes);
  if (!budget_.Take(size)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("staging area of %d bytes: all clients have shm.staging together", bytes));
  }
  UniqueFd fd(::memfd_create("pagoda-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  absl::Status status;
  void* data = MAP_FAILED;
  if (!fd.valid()) {
    status = NoMemory("memfd_create");
  } else if (::ftruncate(fd.get(), size) != 0) {
    status = NoMemory("ftruncate");
  } else if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    status = NoMemory("F_ADD_SEALS");  // a file that becomes shorter would end this process
  } else {
    data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) status = NoMemory("mmap");
  }
  if (!status.ok()) {
    budget_.Return(size);
    return status;
  }
  area_ = {static_cast<const std::byte*>(data), size};
  return fd;
}

void ShmPushes::Stage(ShmConnection& connection, const shm::Request& request) {
  absl::StatusOr<UniqueFd> fd = MakeArea(request.what);
  if (!fd.ok()) return connection.SendStatus(request.op, request.tag, fd.status());
  connection.SendMemory(request.op, request.tag, {request.what, 0}, *std::move(fd));
}

bool ShmPushes::Take(const std::shared_ptr<ShmConnection>& connection, std::string bytes) {
  if (area_.data == nullptr) return false;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.size() >= static_cast<size_t>(shm::kPushesMax)) return false;
    waiting_.push_back({connection, std::move(bytes)});
    if (running_) return true;
    running_ = true;
  }
  return queue_.PushAlways([self = shared_from_this()] { self->Run(); });
}

// One page, and then behind the other connections again.
void ShmPushes::Run() {
  Waiting next;
  {
    absl::MutexLock lock(&mutex_);
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  if (!next.connection->cut()) TakeIn(next);
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.empty()) {
      running_ = false;
      return;
    }
  }
  queue_.PushAlways([self = shared_from_this()] { self->Run(); });
}

void ShmPushes::TakeIn(const Waiting& push) {
  const auto no_request = [&push](const absl::Status& why) {
    push.connection->SendStatus(shm::Op::kPush, 0, why);
    push.connection->Cut();
  };
  const absl::StatusOr<shm::PushView> request = shm::ParsePushPacket(push.bytes);
  if (!request.ok()) return no_request(request.status());
  const v1::PushRequest& fields = request->fields;
  std::optional<SequenceId> sequence;
  if (!fields.sequence_id().empty()) {
    const absl::StatusOr<SequenceId> id = ParseId<SequenceId>("sequence_id", fields.sequence_id());
    if (!id.ok()) return no_request(id.status());
    sequence = *id;
  }
  PagePush page(context_, *caller_, fields.page());
  absl::Status outside;
  const std::vector<uint64_t>& offsets = request->offsets;
  for (size_t i = 0; i < offsets.size() && page.status().ok() && outside.ok(); ++i) {
    const uint64_t length = i < page.segments().size() ? page.segments()[i].length : 0;
    const auto area_bytes = static_cast<uint64_t>(area_.bytes);
    if (length > area_bytes || offsets[i] > area_bytes - length) {
      outside = absl::InvalidArgumentError(
          absl::StrFormat("segment %d: at %d, beyond the staging area", i, offsets[i]));
      break;
    }
    page.AddSharedSegment({area_.data + offsets[i], static_cast<size_t>(length)});
  }
  const absl::StatusOr<PushedPage> pushed =
      outside.ok() ? CommitPush(context_, *push.connection->session(), sequence, page)
                   : absl::StatusOr<PushedPage>(outside);
  const v1::PushResponse answer = PushAnswer(context_, page, pushed);
  if (answer.code() != 0) {
    return push.connection->SendStatus(
        shm::Op::kPush, request->tag,
        absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message()));
  }
  shm::Reply reply;
  reply.op = shm::Op::kPush;
  reply.tag = request->tag;
  reply.last = 1;
  reply.outcome = static_cast<uint32_t>(answer.outcome());
  std::string packet;
  shm::AppendStruct(packet, reply);
  push.connection->Send(std::move(packet));
}

}  // namespace pagoda
