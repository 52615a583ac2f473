// Goal: every error of CUDA, at every call, is a status; one that ends the device is remembered;
// what was taken is given back. Method: CUDA's calls on the host, each of which fails once with
// each kind of error while a device is opened and used in all ways.
#include <gtest/gtest.h>

#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/cuda_runtime.h"
#include "storage/device/cuda_status.h"
#include "storage/device/device_pool.h"
#include "storage/device/testing/fake_cuda.h"
#include "storage/device/testing/host_arena.h"
#include "storage/device/tier_mover.h"

namespace pagoda {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
const ScopeId kScope = ScopeIdOf({ScopeKind::kPublic, ""});

absl::Status UseInAllWays(DeviceRuntime& device, const HostArena& host) {
  PAGODA_ASSIGN_OR_RETURN(const auto registration, device.RegisterHost(host.data(), host.bytes()));
  PAGODA_ASSIGN_OR_RETURN(const auto pool, DevicePool::Create(device, {.capacity_bytes = 2 << 20,
                                                                       .chunk_bytes = 2 << 20}));
  PAGODA_ASSIGN_OR_RETURN(const auto plain, device.Allocate(4096, DeviceSharing::kPrivate));
  PAGODA_ASSIGN_OR_RETURN(const auto stream, device.NewStream());
  PAGODA_ASSIGN_OR_RETURN(const auto event, device.NewEvent());
  PAGODA_ASSIGN_OR_RETURN(const auto exportable, device.Allocate(4096, DeviceSharing::kExportable));
  PAGODA_ASSIGN_OR_RETURN(MemoryHandle handle, device.Export(*exportable));
  PAGODA_ASSIGN_OR_RETURN(const auto imported, device.Import(std::move(handle)));
  PAGODA_RETURN_IF_ERROR(stream->Clear(plain->data(), 4096));
  PAGODA_RETURN_IF_ERROR(stream->WriteFlag(host.words() + 1024, 1));
  PAGODA_RETURN_IF_ERROR(stream->Record(*event));
  PAGODA_RETURN_IF_ERROR(device.Await(*event, kLong));
  PAGODA_ASSIGN_OR_RETURN(const auto mover,
                          TierMover::Create(device, SystemClock(), {.own_thread = false}));
  PAGODA_ASSIGN_OR_RETURN(DeviceSlab slab, pool->Allocate(kScope, 4096));
  const auto kept = std::make_shared<DeviceSlab>(std::move(slab));
  Move move;
  move.layers = {{{kept->data(), host.data(), 4096}}};
  move.keep = {kept};
  move.after = event.get();
  PAGODA_ASSIGN_OR_RETURN(const auto arrival, mover->Submit(std::move(move)));
  PAGODA_RETURN_IF_ERROR(stream->WaitFlag(host.words() + 1024, 1));
  PAGODA_RETURN_IF_ERROR(arrival->WaitLayer(*stream, 0));
  PAGODA_RETURN_IF_ERROR(stream->Record(*event));
  PAGODA_RETURN_IF_ERROR(device.Await(*event, kLong));
  (void)mover->Poll();
  return arrival->result().value_or(absl::InternalError("not there"));
}

struct Outcome {
  bool opened = false;
  bool lost = false;
};

absl::Status OpenAndUse(const HostArena& host, Outcome& outcome) {
  PAGODA_ASSIGN_OR_RETURN(const auto devices, ListCudaDevices());
  PAGODA_ASSIGN_OR_RETURN(const auto device, OpenCudaDevice(devices.at(0).uuid));
  outcome.opened = true;
  const absl::Status status = UseInAllWays(*device, host);
  outcome.lost = !device->health().ok();
  if (outcome.lost) {
    EXPECT_THAT(device->NewStream(), StatusIs(absl::StatusCode::kUnavailable, "is lost"));
    EXPECT_THAT(device->Allocate(1, DeviceSharing::kPrivate),
                StatusIs(absl::StatusCode::kUnavailable, "is lost"));
  } else if (!status.ok() && absl::IsInternal(status)) {
    PAGODA_EXPECT_OK(UseInAllWays(*device, host));  // the next try works
  }
  return status;
}

class CudaFaultTest : public ::testing::Test {
 protected:
  void TearDown() override { ResetFakeCuda(); }
  const HostArena host_{4 * 4096};
};

TEST_F(CudaFaultTest, EveryCallFailsOnceWithEveryKindOfError) {
  Outcome outcome;
  PAGODA_ASSERT_OK(OpenAndUse(host_, outcome));
  ASSERT_EQ(FakeCudaObjectCount(), 0);
  for (const std::string& call : FakeCudaCalls()) {
    for (const cudaError_t error :
         {cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorECCUncorrectable}) {
      for (int skipped = 0; skipped < 6; ++skipped) {
        ResetFakeCuda();
        FailFakeCuda(call, error, skipped);
        outcome = {};
        const absl::Status status = OpenAndUse(host_, outcome);
        const std::string where = call + " after " + std::to_string(skipped) + ": ";
        // Where the fault was of no effect there were fewer calls, or an export took the other way.
        EXPECT_EQ(outcome.lost, outcome.opened && !status.ok() && IsSticky(error))
            << where << status;
        if (!status.ok() && IsSticky(error)) {
          EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << where << status;
        }
        ResetFakeCuda();
        ASSERT_EQ(FakeCudaObjectCount(), 0) << where;
      }
    }
  }
}

TEST_F(CudaFaultTest, ALegacyHandleWhereThereAreNoDescriptors) {
  SetFakeCudaDescriptors(false);
  const auto device = *OpenCudaDevice((*ListCudaDevices())[0].uuid);
  const auto buffer = *device->Allocate(8192, DeviceSharing::kExportable);
  MemoryHandle handle = *device->Export(*buffer);
  EXPECT_EQ(handle.kind, MemoryHandle::Kind::kLegacyIpc);
  const auto imported = *device->Import(std::move(handle));
  buffer->data()[8191] = std::byte{5};
  EXPECT_EQ(imported->data()[8191], std::byte{5});
  EXPECT_NE(imported->data(), buffer->data());
}

TEST_F(CudaFaultTest, DescriptorsThatCannotBeImportedAreNotOffered) {
  FailFakeCuda("cuMemImportFromShareableHandle", cudaErrorMapBufferObjectFailed);
  const auto device = *OpenCudaDevice((*ListCudaDevices())[0].uuid);
  const auto buffer = *device->Allocate(8192, DeviceSharing::kExportable);
  EXPECT_EQ(device->Export(*buffer)->kind, MemoryHandle::Kind::kLegacyIpc);
  EXPECT_THAT(OpenCudaDevice({}), StatusIs(absl::StatusCode::kNotFound, "among 2"));
}

}  // namespace
}  // namespace pagoda
