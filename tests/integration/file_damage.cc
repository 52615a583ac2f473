#include "tests/integration/file_damage.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlockBytes = 4096;

std::vector<fs::path> FilesOf(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file(error) && entry.file_size(error) > 0) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // the order of a folder is not the seed's
  return files;
}

std::string Cut(const fs::path& file, std::mt19937& rng) {
  std::error_code error;
  const uint64_t size = rng() % fs::file_size(file, error);
  fs::resize_file(file, size, error);
  return absl::StrCat("cut ", file.filename().string(), " to ", size);
}

std::string FlipBits(const fs::path& file, std::mt19937& rng) {
  std::error_code error;
  const uint64_t size = fs::file_size(file, error);
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const uint32_t count = 1 + rng() % 8;
  for (uint32_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::streamoff>(((uint64_t{rng()} << 32) + rng()) % size);
    char byte = 0;
    stream.seekg(at).read(&byte, 1);
    byte = static_cast<char>(byte ^ (1 << rng() % 8));
    stream.seekp(at).write(&byte, 1);
  }
  return absl::StrCat("flipped ", count, " bits of ", file.filename().string());
}

std::string Exchange(const fs::path& first, const fs::path& second, std::mt19937& rng) {
  std::error_code error;
  std::fstream a(first, std::ios::in | std::ios::out | std::ios::binary);
  std::fstream b(second, std::ios::in | std::ios::out | std::ios::binary);
  const uint64_t blocks_a = fs::file_size(first, error) / kBlockBytes;
  const uint64_t blocks_b = fs::file_size(second, error) / kBlockBytes;
  if (blocks_a == 0 || blocks_b == 0) return "nothing";
  const auto at_a = static_cast<std::streamoff>(rng() % blocks_a * kBlockBytes);
  const auto at_b = static_cast<std::streamoff>(rng() % blocks_b * kBlockBytes);
  std::string from_a(kBlockBytes, '\0');
  std::string from_b(kBlockBytes, '\0');
  a.seekg(at_a).read(from_a.data(), kBlockBytes);
  b.seekg(at_b).read(from_b.data(), kBlockBytes);
  a.seekp(at_a).write(from_b.data(), kBlockBytes);
  b.seekp(at_b).write(from_a.data(), kBlockBytes);
  return absl::StrCat("exchanged blocks of ", first.filename().string(), " and ",
                      second.filename().string());
}

}  // namespace

std::string DamageFolder(const std::string& folder, std::mt19937& rng) {
  std::string done;
  const uint32_t count = 1 + rng() % 3;
  for (uint32_t i = 0; i < count; ++i) {
    const std::vector<fs::path> files = FilesOf(folder);
    if (files.empty()) break;
    const fs::path& file = files[rng() % files.size()];
    if (i > 0) absl::StrAppend(&done, ", ");
    switch (rng() % 4) {
      case 0:
        absl::StrAppend(&done, Cut(file, rng));
        break;
      case 1:
        absl::StrAppend(&done, FlipBits(file, rng));
        break;
      case 2:
        absl::StrAppend(&done, "deleted ", file.filename().string());
        fs::remove(file);
        break;
      default:
        absl::StrAppend(&done, Exchange(file, files[rng() % files.size()], rng));
    }
  }
  return done;
}

}  // namespace pagoda
