// Fuzzes the files that people give to pagodad: its configuration, its tokens and layer profiles.
// Whatever they hold, the answer is a status in one line or options that can be validated.
// Method: the input is a file in memory, read by the path of its descriptor.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "cache-server/config_file.h"
#include "cache-server/token_file.h"
#include "kernels/layer_profile.h"
#include "kernels/page_layout.h"
#include "storage/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;  // NOLINT: an entry point of one function
  const int fd = memfd_create("config", MFD_CLOEXEC);
  PAGODA_CHECK(fd >= 0);
  PAGODA_CHECK(fchmod(fd, 0600) == 0);  // others may not read tokens
  PAGODA_CHECK(write(fd, data, size) == static_cast<ssize_t>(size));
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  ServerOptions options;
  const absl::Status read = ReadConfigFile(path, options);
  PAGODA_CHECK(read.message().find('\n') == absl::string_view::npos);
  if (read.ok()) (void)options.Validate();
  const auto tokens = ReadTokenFile(path);
  PAGODA_CHECK(tokens.status().message().find('\n') == absl::string_view::npos);
  if (tokens.ok()) PAGODA_CHECK(!tokens->empty());
  const auto profile = ReadLayerProfile(path);
  PAGODA_CHECK(profile.status().message().find('\n') == absl::string_view::npos);
  if (profile.ok()) {
    PAGODA_CHECK(kernels::ValidateKLoLayers(profile->k_lo_layers, profile->layer_count).ok());
  }
  close(fd);
  return 0;
}
