// A daemon inside this process, in a temporary folder: for benches and tests that bring their own.
//
// Ownership  the destructor shuts it down and removes its folder
// Errors     those of Server::Start()
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/temp_folder.h"
#include "kernels/layer_profile.h"
#include "storage/base/precision.h"
#include "storage/store_policies.h"

namespace pagoda {
class Server;
}  // namespace pagoda

namespace pagoda::cli {

enum class SocketKind { kTcp, kUnix };

struct SelfDaemonOptions {
  SocketKind socket = SocketKind::kUnix;
  int64_t host_bytes = int64_t{1} << 30;
  bool ssd = false;
  Precision ladder = Precision::kRaw16;
  std::map<std::string, LayerProfile> profiles = {};  // by ModelSpec.model
  StorePolicies policies;
};

class SelfDaemon {
 public:
  static absl::StatusOr<std::unique_ptr<SelfDaemon>> Start(const SelfDaemonOptions& options);
  ~SelfDaemon();

  const std::string& address() const;

 private:
  explicit SelfDaemon(TempFolder folder);

  const TempFolder folder_;
  std::unique_ptr<Server> server_;  // last: ends before the folder goes
};

}  // namespace pagoda::cli
