// A worker for memory_export_device_test: maps what the daemon exports and does what it is told,
// one packet a command. "read ID OFFSET BYTES TICKET" copies the slab to host memory, finishes the
// ticket and answers with the sum of its bytes; "hold ..." does not finish it.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/check.h"
#include "storage/device/memory_export.h"
#include "storage/device/testing/host_arena.h"
#include "storage/device/testing/test_device.h"

namespace pagoda {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr size_t kCommandBytesMax = 256;

absl::StatusOr<std::string> Read(DeviceRuntime& device, DeviceImport& imported,
                                 const DeviceGrant& grant, bool finish) {
  const absl::StatusOr<std::byte*> data = imported.Find(grant);
  if (!data.ok()) return data.status();
  const HostArena host(grant.bytes);
  const auto registration = *device.RegisterHost(host.data(), host.bytes());
  const auto stream = *device.NewStream();
  const auto event = *device.NewEvent();
  absl::Status status =
      stream->CopyBatch(CopyDirection::kDeviceToHost, {{host.data(), *data, grant.bytes}});
  if (status.ok() && finish) status = imported.Finish(*stream, grant.ticket);
  if (status.ok()) status = stream->Record(*event);
  if (status.ok()) status = device.Await(*event, kLong);
  if (!status.ok()) return status;
  int64_t sum = 0;
  for (int64_t i = 0; i < grant.bytes; ++i) sum += static_cast<int64_t>(host.data()[i]);
  return absl::StrCat(finish ? "sum " : "held ", sum);
}

int Run(const char* path) {
  auto device = OpenTestDevice();
  if (!device.ok()) return 3;
  auto socket = ConnectPackets(path);
  if (!socket.ok()) return 4;
  auto imported = DeviceImport::Open(**device, socket->get(), kLong);
  if (!imported.ok()) return 5;
  while (true) {
    absl::StatusOr<Packet> packet = ReceivePacket(socket->get(), kCommandBytesMax, kLong);
    if (!packet.ok()) return 6;
    if (packet->bytes.empty()) return 0;
    if (packet->bytes.size() == kExportPacketBytes) {
      const absl::Status status = (*imported)->Receive(*std::move(packet));
      if (!status.ok()) (void)TrySendPacket(socket->get(), status.ToString());
      continue;
    }
    char verb[16];
    unsigned long long id, ticket;
    long long offset, bytes;
    PAGODA_CHECK(std::sscanf(packet->bytes.c_str(), "%15s %llu %lld %lld %llu", verb, &id, &offset,
                             &bytes, &ticket) == 5);
    const auto answer = Read(**device, **imported, {id, offset, bytes, ticket},
                             /*finish=*/std::string(verb) == "read");
    const absl::Status sent =
        TrySendPacket(socket->get(), answer.ok() ? *answer : answer.status().ToString());
    if (!sent.ok()) return 7;
  }
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) { return argc == 2 ? pagoda::Run(argv[1]) : 2; }
