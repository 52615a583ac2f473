#include "storage/device/memory_import.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/bytes.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr absl::string_view kMagic("PGDADEV\1", 8);
constexpr size_t kMemoryAt = 16;
enum class PacketKind : uint8_t { kFlags = 1, kMemory = 2 };

std::string Header(PacketKind kind, uint8_t memory_kind) {
  ByteWriter writer;
  writer.PutBytes(kMagic.data(), kMagic.size());
  writer.Put(kind);
  writer.Put(memory_kind);
  writer.PadTo(kMemoryAt);
  return writer.Take();
}

absl::Status Check(const Packet& packet, PacketKind kind) {
  if (packet.bytes.empty()) return absl::UnavailableError("device export: the peer has closed");
  if (packet.bytes.size() != kExportPacketBytes ||
      absl::string_view(packet.bytes).substr(0, kMagic.size()) != kMagic ||
      packet.bytes[kMagic.size()] != static_cast<char>(kind)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device export: a packet of %d bytes is not one of kind %d",
                        packet.bytes.size(), static_cast<int>(kind)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeExport(const ExportedMemory& memory) {
  ByteWriter writer;
  const std::string header = Header(PacketKind::kMemory, static_cast<uint8_t>(memory.handle.kind));
  writer.PutBytes(header.data(), header.size());
  writer.Put(memory.memory_id);
  writer.Put(memory.handle.bytes);
  writer.PutBytes(memory.handle.uuid.bytes.data(), memory.handle.uuid.bytes.size());
  writer.PutBytes(memory.handle.ipc.data(), memory.handle.ipc.size());
  return writer.Take();
}

absl::StatusOr<ExportedMemory> DecodeExport(Packet packet) {
  PAGODA_RETURN_IF_ERROR(Check(packet, PacketKind::kMemory));
  ByteReader reader(AsBytes(packet.bytes));
  reader.Skip(kMagic.size() + 1);
  const auto kind = reader.Get<uint8_t>();
  reader.Skip(kMemoryAt - reader.offset());
  ExportedMemory memory;
  memory.memory_id = reader.Get<uint64_t>();
  memory.handle.bytes = reader.Get<int64_t>();
  reader.GetBytes(memory.handle.uuid.bytes.data(), memory.handle.uuid.bytes.size());
  reader.GetBytes(memory.handle.ipc.data(), memory.handle.ipc.size());
  memory.handle.kind = static_cast<MemoryHandle::Kind>(kind);
  const bool by_descriptor = memory.handle.kind == MemoryHandle::Kind::kDescriptor ||
                             memory.handle.kind == MemoryHandle::Kind::kMemfd;
  if (!by_descriptor && memory.handle.kind != MemoryHandle::Kind::kLegacyIpc) {
    return absl::InvalidArgumentError(absl::StrFormat("device export: memory of kind %d", kind));
  }
  if (memory.handle.bytes <= 0 || by_descriptor != packet.fd.valid()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device export: %d bytes of kind %d, %s descriptor", memory.handle.bytes,
                        kind, packet.fd.valid() ? "with a" : "without"));
  }
  memory.handle.fd = std::move(packet.fd);
  return memory;
}

std::string EncodeFlags() {
  std::string packet = Header(PacketKind::kFlags, 0);
  packet.resize(kExportPacketBytes);
  return packet;
}

bool IsExportPacket(absl::string_view bytes) {
  return bytes.size() == kExportPacketBytes && bytes.substr(0, kMagic.size()) == kMagic;
}

absl::StatusOr<std::unique_ptr<DeviceImport>> DeviceImport::Open(DeviceRuntime& runtime, int socket,
                                                                 absl::Duration timeout) {
  PAGODA_ASSIGN_OR_RETURN(Packet packet, ReceivePacket(socket, kExportPacketBytes, timeout));
  return Open(runtime, std::move(packet));
}

absl::StatusOr<std::unique_ptr<DeviceImport>> DeviceImport::Open(DeviceRuntime& runtime,
                                                                 Packet packet) {
  PAGODA_RETURN_IF_ERROR(Check(packet, PacketKind::kFlags));
  PAGODA_ASSIGN_OR_RETURN(FlagPage flags, FlagPage::Map(std::move(packet.fd)));
  PAGODA_ASSIGN_OR_RETURN(auto registration, runtime.RegisterHost(flags.data(), FlagPage::kBytes));
  return std::unique_ptr<DeviceImport>(
      new DeviceImport(runtime, std::move(flags), std::move(registration)));
}

DeviceImport::DeviceImport(DeviceRuntime& runtime, FlagPage flags,
                           std::unique_ptr<HostRegistration> registration)
    : runtime_(runtime), flags_(std::move(flags)), registration_(std::move(registration)) {}

absl::Status DeviceImport::Receive(Packet packet) {
  PAGODA_ASSIGN_OR_RETURN(ExportedMemory memory, DecodeExport(std::move(packet)));
  if (memory_.contains(memory.memory_id)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device export: memory %d came before", memory.memory_id));
  }
  PAGODA_ASSIGN_OR_RETURN(auto buffer, runtime_.Import(std::move(memory.handle)));
  memory_.emplace(memory.memory_id, std::move(buffer));
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> DeviceImport::Find(const DeviceGrant& grant) const {
  const auto it = memory_.find(grant.memory_id);
  if (it == memory_.end()) {
    return absl::NotFoundError(absl::StrFormat("device export: no memory %d", grant.memory_id));
  }
  const DeviceBuffer& buffer = *it->second;
  if (grant.offset < 0 || grant.bytes <= 0 || grant.bytes > buffer.bytes() ||
      grant.offset > buffer.bytes() - grant.bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device export: %d bytes at %d of memory of %d", grant.bytes, grant.offset,
                        buffer.bytes()));
  }
  return buffer.data() + grant.offset;
}

absl::Status DeviceImport::Finish(DeviceStream& stream, uint64_t ticket) {
  return stream.WriteFlag(word(ExportWord::kRead), ticket);
}

}  // namespace pagoda
