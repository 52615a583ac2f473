// NCCL's calls on the host, as a library of their own to be loaded: two ranks of one process, over
// the streams of fake_cuda.h. A communicator is in progress until both have joined, and broken for
// the one when the other has aborted; a transfer waits in its stream for its other half.
#include <nccl.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "storage/device/testing/fake_cuda.h"

namespace {

struct Message {
  const void* source = nullptr;
  size_t bytes = 0;
  bool taken = false;
};

struct Link {
  int joined = 0;
  bool aborted = false;
  std::deque<std::shared_ptr<Message>> to[2];  // by the rank that receives
};

// By id. Of one thread, as its test is.
std::map<std::string, std::shared_ptr<Link>>& Links() {
  static auto* links = new std::map<std::string, std::shared_ptr<Link>>;
  return *links;
}

}  // namespace

struct ncclComm {
  int rank = 0;
  std::shared_ptr<Link> link;
};

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "an error of the fake";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int count = 0;
  *id = {};
  id->internal[0] = static_cast<char>(++count);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const bool bounded = config->maxCTAs >= 1 && config->maxCTAs <= 32;
  if (ranks != 2 || config->blocking != 0 || !bounded) return ncclInvalidArgument;
  std::shared_ptr<Link>& link = Links()[std::string(id.internal, sizeof(id.internal))];
  if (link == nullptr) link = std::make_shared<Link>();
  ++link->joined;
  *comm = new ncclComm{rank, link};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->link->aborted       ? ncclRemoteError
           : comm->link->joined == 2 ? ncclSuccess
                                     : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->link->aborted = true;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* source, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclInt8 || peer != 1 - comm->rank) return ncclInvalidArgument;
  const auto message = std::make_shared<Message>(Message{source, count});
  stream->queue.emplace_back([link = comm->link, message, peer, posted = false]() mutable {
    if (!posted) link->to[peer].push_back(message);
    posted = true;
    return message->taken || link->aborted;
  });
  return ncclSuccess;
}

ncclResult_t ncclRecv(void* target, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (type != ncclInt8 || peer != 1 - comm->rank) return ncclInvalidArgument;
  stream->queue.emplace_back([link = comm->link, rank = comm->rank, target, count] {
    if (link->aborted) return true;
    auto& messages = link->to[rank];
    if (messages.empty() || messages.front()->bytes != count) return false;  // waits for ever
    std::memcpy(target, messages.front()->source, count);
    messages.front()->taken = true;
    messages.pop_front();
    return true;
  });
  return ncclSuccess;
}

}  // extern "C"
