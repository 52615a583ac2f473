#include "cache-server/hbm.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/device/cuda_runtime.h"

namespace pagoda {
namespace {

// Pages are asked for many at a time, and one that the mover refuses is read from host memory.
constexpr int64_t kInFlightBytesMax = int64_t{1} << 30;
constexpr int32_t kInFlightMovesMax = 16384;

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenRuntime(const HbmSettings& settings) {
  if (settings.open_device != nullptr) return settings.open_device();
  PAGODA_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, ListCudaDevices());
  PAGODA_ASSIGN_OR_RETURN(const DeviceUuid uuid, ChooseDevice(settings.device, devices));
  return OpenCudaDevice(uuid);
}

HbmTierOptions TierOptionsOf(const HbmSettings& settings) {
  HbmTierOptions options;
  options.pool.capacity_bytes = settings.capacity_bytes;
  options.pool.chunk_bytes = settings.chunk_bytes;
  options.mover.bytes_in_flight_max = std::min(kInFlightBytesMax, settings.capacity_bytes);
  options.mover.moves_in_flight_max = kInFlightMovesMax;
  return options;
}

}  // namespace

absl::StatusOr<DeviceUuid> ChooseDevice(const std::string& device,
                                        const std::vector<DeviceInfo>& devices) {
  if (devices.empty()) return absl::NotFoundError("this machine has no GPU");
  if (device == "auto") return devices[0].uuid;
  size_t index = 0;
  if (absl::SimpleAtoi(device, &index)) {
    if (index < devices.size()) return devices[index].uuid;
    return absl::NotFoundError(absl::StrCat("there are ", devices.size(), " GPUs, from 0"));
  }
  for (const DeviceInfo& info : devices) {
    if (info.uuid.ToString() == device) return info.uuid;
  }
  return absl::NotFoundError(
      absl::StrCat("no GPU is called that; there are ",
                   absl::StrJoin(devices, ", ", [](std::string* out, const DeviceInfo& info) {
                     absl::StrAppend(out, info.uuid.ToString());
                   })));
}

absl::StatusOr<std::unique_ptr<Hbm>> Hbm::Open(const HbmSettings& settings, TieredStore& store) {
  if (settings.device == "none") return nullptr;
  auto device = std::make_shared<Device>();
  device->host = store.shared_host_tier();
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> runtime = OpenRuntime(settings);
  absl::Status status = runtime.status();
  if (status.ok()) {
    device->runtime = *std::move(runtime);
    auto tier =
        HbmTier::Create(*device->runtime, *device->host, SystemClock(), TierOptionsOf(settings));
    status = tier.status();
    if (status.ok()) device->tier = *std::move(tier);
  }
  if (status.ok()) {
    const DeviceInfo& info = device->runtime->info();
    LogInfo("hbm_on", {{"device", info.uuid.ToString()},
                       {"name", info.name},
                       {"capacity_bytes", absl::StrCat(settings.capacity_bytes)}});
    return std::unique_ptr<Hbm>(new Hbm(std::move(device), store));
  }
  if (settings.device == "auto") {
    LogInfo("hbm_off",
            {{"reason", std::string(status.message())}, {"effect", "no pages in device memory"}});
    return nullptr;
  }
  return absl::Status(
      status.code(),
      absl::StrCat("hbm.device: ", settings.device, " cannot be used: ", status.message(),
                   "; name another device, give it less (hbm.capacity is ", settings.capacity_bytes,
                   "), or set hbm.device to auto, which goes on without one, or to none"));
}

// A call of the listener may be under way when this goes: it holds what it needs.
Hbm::Hbm(std::shared_ptr<Device> device, TieredStore& store)
    : device_(std::move(device)), store_(store) {
  store_.SetHostListener([weak = std::weak_ptr<Device>(device_)](const RecordKey& record) {
    if (const auto held = weak.lock()) held->tier->Drop(record);
  });
}

Hbm::~Hbm() { store_.SetHostListener(nullptr); }

absl::StatusOr<DevicePagePtr> Hbm::Promote(const HostPagePtr& page) {
  // What is here already is no use on a lost device, either.
  PAGODA_RETURN_IF_ERROR(health());
  const PageHeader& header = page->header();
  const auto is_stored = [this, &header] {
    const HostPagePtr stored = store_.GetResident(header.record, header.scope);
    return stored != nullptr && stored->header() == header;
  };
  // A lease may name a form that is not the store's any more: it must not drive out the newer one.
  const bool keep = is_stored();
  absl::StatusOr<DevicePagePtr> promoted = tier().Promote(page, keep);
  if (!promoted.ok()) {
    (void)health();
    return promoted;
  }
  // If the store dropped it before it was here, nobody said so to this tier.
  if (keep && !is_stored()) tier().Drop(**promoted);
  return promoted;
}

absl::Status Hbm::health() {
  const absl::Status health = device_->runtime->health();
  if (!health.ok() && !told_lost_.exchange(true, std::memory_order_relaxed)) {
    LogError("hbm_lost", {{"device", info().uuid.ToString()},
                          {"cause", std::string(health.message())},
                          {"effect", "pages are read from host memory"},
                          {"remedy", "restart pagodad to use the device again"}});
  }
  return health;
}

HbmState Hbm::state() const {
  HbmState state;
  state.counts = device_->tier->stats();
  state.lost = !device_->runtime->health().ok();
  const DeviceUsage usage = device_->tier->pool().usage();
  TierStats& tier = state.tier;
  tier.present = true;
  tier.capacity_bytes = usage.capacity_bytes;
  tier.used_bytes = usage.used_bytes + usage.limbo_bytes;
  tier.reserved_bytes = usage.reserved_bytes;
  // Dropped, or on the way, and held: of readers, leases and copies.
  tier.page_bytes = state.counts.page_bytes;
  tier.lingering_bytes = std::max<int64_t>(0, tier.used_bytes - tier.page_bytes);
  tier.page_count = state.counts.page_count;
  tier.pages_by_precision = state.counts.pages_by_precision;
  return state;
}

}  // namespace pagoda
