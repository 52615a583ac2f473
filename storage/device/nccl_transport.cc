#include "storage/device/nccl_transport.h"

#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(PeerLinkId::bytes));

constexpr int kRankCount = 2;

// The calls of libnccl.so. It is never unloaded: its threads may be inside.
struct Nccl {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  int version = 0;
};

template <typename Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("nccl: the library has no ", name));
}

absl::Status FromNccl(const Nccl& nccl, absl::string_view call, ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": ", nccl.get_error_string(result));
  switch (result) {
    case ncclRemoteError:
    case ncclSystemError:
    case ncclUnhandledCudaError:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(absl::StrCat(text, "; NCCL_DEBUG=WARN shows more"));
  }
}

absl::StatusOr<Nccl> Load(const NcclOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  void* library = dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("nccl: ", dlerror(), "; install it, or leave the nccl path off"));
  }
  Nccl nccl;
  PAGODA_RETURN_IF_ERROR(Find(library, "ncclGetVersion", nccl.get_version));
  PAGODA_RETURN_IF_ERROR(Find(library, "ncclGetErrorString", nccl.get_error_string));
  PAGODA_RETURN_IF_ERROR(Find(library, "ncclGetUniqueId", nccl.get_unique_id));
  PAGODA_RETURN_IF_ERROR(Find(library, "ncclCommInitRankConfig", nccl.comm_init));
  PAGODA_RETURN_IF_ERROR(Find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error));
  PAGODA_RETURN_IF_ERROR(Find(library, "ncclCommAbort", nccl.comm_abort));
  PAGODA_RETURN_IF_ERROR(Find(library, "ncclSend", nccl.send));
  PAGODA_RETURN_IF_ERROR(Find(library, "ncclRecv", nccl.receive));
  PAGODA_RETURN_IF_ERROR(FromNccl(nccl, "ncclGetVersion", nccl.get_version(&nccl.version)));
  // A newer library reads an older configuration, not the other way round.
  if (nccl.version < NCCL_VERSION_CODE) {
    return absl::UnimplementedError(
        absl::StrFormat("nccl: version %d, this build needs %d", nccl.version, NCCL_VERSION_CODE));
  }
  return nccl;
}

class NcclTransport final : public PeerTransport {
 public:
  NcclTransport(const Nccl& nccl, DeviceRuntime& runtime, const NcclOptions& options)
      : nccl_(nccl), runtime_(runtime), options_(options) {}
  ~NcclTransport() override { Abort(); }

  absl::StatusOr<PeerLinkId> NewId() override {
    PAGODA_RETURN_IF_ERROR(runtime_.MakeCurrent());
    ncclUniqueId made;
    PAGODA_RETURN_IF_ERROR(FromNccl(nccl_, "ncclGetUniqueId", nccl_.get_unique_id(&made)));
    PeerLinkId id;
    std::memcpy(id.bytes.data(), &made, sizeof(made));
    return id;
  }

  absl::Status Join(const PeerLinkId& id, int rank) override {
    PAGODA_CHECK(comm_ == nullptr);
    peer_ = 1 - rank;
    PAGODA_RETURN_IF_ERROR(runtime_.MakeCurrent());
    ncclUniqueId joined;
    std::memcpy(&joined, id.bytes.data(), sizeof(joined));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = options_.channels_max;
    return FromNccl(nccl_, "ncclCommInitRankConfig",
                    nccl_.comm_init(&comm_, kRankCount, joined, rank, &config));
  }

  absl::StatusOr<bool> Poll() override {
    if (comm_ == nullptr) return absl::UnavailableError("nccl: no communicator");
    ncclResult_t state = ncclSuccess;
    PAGODA_RETURN_IF_ERROR(
        FromNccl(nccl_, "ncclCommGetAsyncError", nccl_.comm_get_async_error(comm_, &state)));
    PAGODA_RETURN_IF_ERROR(FromNccl(nccl_, "nccl", state));
    return state != ncclInProgress;
  }

  absl::Status Send(const std::byte* source, int64_t bytes, DeviceStream& stream) override {
    PAGODA_RETURN_IF_ERROR(runtime_.MakeCurrent());
    return FromNccl(nccl_, "ncclSend",
                    nccl_.send(source, static_cast<size_t>(bytes), ncclInt8, peer_, comm_,
                               static_cast<cudaStream_t>(stream.native())));
  }

  absl::Status Receive(std::byte* target, int64_t bytes, DeviceStream& stream) override {
    PAGODA_RETURN_IF_ERROR(runtime_.MakeCurrent());
    return FromNccl(nccl_, "ncclRecv",
                    nccl_.receive(target, static_cast<size_t>(bytes), ncclInt8, peer_, comm_,
                                  static_cast<cudaStream_t>(stream.native())));
  }

  void Abort() override {
    if (comm_ == nullptr) return;
    (void)runtime_.MakeCurrent();
    (void)nccl_.comm_abort(std::exchange(comm_, nullptr));
  }

 private:
  const Nccl nccl_;
  DeviceRuntime& runtime_;
  const NcclOptions options_;
  ncclComm_t comm_ = nullptr;
  int peer_ = 0;  // its rank
};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerTransport>> OpenNccl(DeviceRuntime& runtime,
                                                        const NcclOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const Nccl nccl, Load(options));
  return std::make_unique<NcclTransport>(nccl, runtime, options);
}

absl::StatusOr<int> NcclVersion(const NcclOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const Nccl nccl, Load(options));
  return nccl.version;
}

}  // namespace pagoda
