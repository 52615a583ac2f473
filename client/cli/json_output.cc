#include "client/cli/json_output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::cli {
namespace {

absl::Status CannotWrite(const std::string& path, int error) {
  const std::string message = absl::StrFormat(
      "cannot write %s: %s; name a file in a folder that exists and may be "
      "written, or - for stdout",
      path, std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM || error == EROFS) {
    return absl::PermissionDeniedError(message);
  }
  return absl::InternalError(message);
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool IsRegularOrAbsent(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

// 0, or errno.
int WriteWhole(const std::string& path, const std::string& text) {
  FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return errno;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int write_error = errno;
  if (std::fclose(file) != 0) return errno;
  return written ? 0 : write_error;
}

}  // namespace

FILE* TextStream(const JsonOptions& options) { return options.path == "-" ? stderr : stdout; }

void PrintText(const JsonOptions& options, absl::string_view text) {
  FILE* const stream = TextStream(options);
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

absl::Status CheckJsonPath(const JsonOptions& options) {
  const std::string& path = options.path;
  if (path.empty() || path == "-") return absl::OkStatus();
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return CannotWrite(path, EISDIR);
    if (access(path.c_str(), W_OK) != 0) return CannotWrite(path, errno);
    if (!S_ISREG(info.st_mode)) return absl::OkStatus();
  }
  const std::string folder = FolderOf(path);
  if (stat(folder.c_str(), &info) != 0) return CannotWrite(path, errno);
  if (!S_ISDIR(info.st_mode)) return CannotWrite(path, ENOTDIR);
  if (access(folder.c_str(), W_OK | X_OK) != 0) return CannotWrite(path, errno);
  return absl::OkStatus();
}

absl::Status WriteOutput(const std::string& path, const std::string& text) {
  if (path == "-") {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    return written && std::fflush(stdout) == 0 ? absl::OkStatus() : CannotWrite(path, errno);
  }
  if (!IsRegularOrAbsent(path)) {  // a pipe or a device cannot be replaced
    const int error = WriteWhole(path, text);
    return error == 0 ? absl::OkStatus() : CannotWrite(path, error);
  }
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  if (const int error = WriteWhole(temporary, text); error != 0) {
    unlink(temporary.c_str());
    return CannotWrite(path, error);
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    return CannotWrite(path, error);
  }
  return absl::OkStatus();
}

absl::Status WriteJson(const JsonOptions& options, const Json& value) {
  if (options.path.empty()) return absl::OkStatus();
  // Names of models and files come from outside and may hold any bytes.
  return WriteOutput(options.path,
                     value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace pagoda::cli
