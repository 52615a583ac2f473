#include "client/shm_connect.h"

#include <cstring>

#include "proto/shm_protocol.h"
#include "storage/base/packet_socket.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {

absl::StatusOr<UniqueFd> ConnectShm(const std::string& path, const std::string& session_id) {
  PAGODA_ASSIGN_OR_RETURN(UniqueFd socket, ConnectPackets(path));
  shm::Hello hello;
  if (session_id.size() != hello.session_id.size()) {
    return absl::InvalidArgumentError("shm: a session id of another length");
  }
  std::memcpy(hello.session_id.data(), session_id.data(), session_id.size());
  std::string bytes;
  shm::AppendStruct(bytes, hello);
  PAGODA_RETURN_IF_ERROR(TrySendPacket(socket.get(), bytes));
  return socket;
}

}  // namespace pagoda::client
