#include "proto/shm_push_packet.h"

#include <cstring>

#include "proto/shm_protocol.h"

namespace pagoda::shm {
namespace {

constexpr size_t kHeadBytes = sizeof(Request) + sizeof(Push);

}  // namespace

std::string PushPacket(uint32_t tag, absl::Span<const uint64_t> offsets, absl::string_view fields) {
  std::string packet;
  packet.reserve(kHeadBytes + offsets.size() * sizeof(uint64_t) + fields.size());
  Request request;
  request.op = Op::kPush;
  request.tag = tag;
  AppendStruct(packet, request);
  AppendStruct(packet, Push{static_cast<uint32_t>(offsets.size()), 0});
  if (!offsets.empty()) {
    packet.append(reinterpret_cast<const char*>(offsets.data()), offsets.size() * sizeof(uint64_t));
  }
  packet.append(fields.data(), fields.size());
  return packet;
}

absl::StatusOr<PushView> ParsePushPacket(absl::string_view packet) {
  if (packet.size() < kHeadBytes) return absl::InvalidArgumentError("push: too short");
  Request request;
  Push head;
  std::memcpy(&request, packet.data(), sizeof(request));
  std::memcpy(&head, packet.data() + sizeof(request), sizeof(head));
  if (request.op != Op::kPush) return absl::InvalidArgumentError("push: of another kind");
  packet.remove_prefix(kHeadBytes);
  const size_t table_bytes = head.segments * sizeof(uint64_t);
  if (head.segments > kSegmentsMax || table_bytes > packet.size()) {
    return absl::InvalidArgumentError("push: more segments than a page has");
  }
  PushView view;
  view.tag = request.tag;
  view.offsets.resize(head.segments);
  if (table_bytes > 0) std::memcpy(view.offsets.data(), packet.data(), table_bytes);
  packet.remove_prefix(table_bytes);
  if (!view.fields.ParseFromArray(packet.data(), static_cast<int>(packet.size()))) {
    return absl::InvalidArgumentError("push: malformed bytes");
  }
  return view;
}

}  // namespace pagoda::shm
