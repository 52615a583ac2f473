#include "storage/device/cuda_status.h"

#include "absl/strings/str_format.h"

namespace pagoda {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  if (IsSticky(error)) return absl::StatusCode::kUnavailable;
  switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorMpsMaxClientsReached:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorInitializationError:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMapBufferObjectFailed:
      return absl::StatusCode::kUnavailable;
    case cudaErrorNotSupported:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorNotPermitted:
    case cudaErrorSymbolNotFound:
      return absl::StatusCode::kUnimplemented;
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorInvalidDevice:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::string_view RemedyOf(cudaError_t error) {
  if (IsSticky(error)) return "restart the process; see dmesg for the GPU's Xid";
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "lower the budget of the hbm tier";
    case cudaErrorNoDevice:
      return "give the container a GPU, or unset CUDA_VISIBLE_DEVICES";
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorSystemDriverMismatch:
      return "install a driver for this CUDA version";
    case cudaErrorSystemNotReady:
      return "start nvidia-fabricmanager";
    case cudaErrorMapBufferObjectFailed:
      return "both processes must see the same GPU by the same driver mounts";
    default:
      return "";
  }
}

}  // namespace

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorCudartUnloading:
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

absl::Status FromCuda(absl::string_view call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  const absl::string_view remedy = RemedyOf(error);
  return absl::Status(
      CodeOf(error),
      absl::StrFormat("%s: %s (%s)%s%s", call, cudaGetErrorName(error), cudaGetErrorString(error),
                      remedy.empty() ? "" : "; ", remedy));
}

absl::Status FromCudaDriver(absl::string_view call, CUresult result) {
  return FromCuda(call, static_cast<cudaError_t>(result));
}

}  // namespace pagoda
