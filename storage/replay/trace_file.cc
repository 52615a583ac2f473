#include "storage/replay/trace_file.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "storage/base/status_macros.h"

namespace pagoda::replay {
namespace {

constexpr int64_t kTextBytesMax = int64_t{2} << 30;
constexpr absl::string_view kGzipMagic = "\x1f\x8b";
constexpr size_t kChunkBytes = 1 << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string bytes;
  for (std::string chunk(kChunkBytes, '\0'); file.good();) {
    file.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    bytes.append(chunk, 0, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(bytes.size()) > kTextBytesMax) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("%s: more than %d bytes; replay a part of it", path, kTextBytesMax));
    }
  }
  if (file.eof()) return bytes;
  return absl::ErrnoToStatus(errno == 0 ? EIO : errno, absl::StrCat("trace ", path));
}

std::string NameOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  absl::string_view name = slash == absl::string_view::npos ? path : path.substr(slash + 1);
  absl::ConsumeSuffix(&name, ".gz");
  for (const absl::string_view ending : {".jsonl", ".json", ".csv"}) {
    if (absl::ConsumeSuffix(&name, ending)) break;
  }
  return std::string(name);
}

}  // namespace

absl::StatusOr<std::string> Gunzip(absl::string_view bytes, int64_t text_bytes_max) {
  z_stream stream = {};
  constexpr int kGzipOnly = 16;
  if (inflateInit2(&stream, MAX_WBITS + kGzipOnly) != Z_OK) {
    return absl::InternalError("zlib could not begin");
  }
  std::string text;
  int code = Z_OK;
  // One call takes at most 4 GiB of input; a file may have several gzip members.
  while (code == Z_OK && (stream.avail_in > 0 || !bytes.empty())) {
    if (stream.avail_in == 0) {
      const size_t take = std::min<size_t>(bytes.size(), size_t{1} << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(take);
      bytes.remove_prefix(take);
    }
    const size_t done = text.size();
    if (static_cast<int64_t>(done) > text_bytes_max) break;
    text.resize(done + kChunkBytes);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + done);
    stream.avail_out = kChunkBytes;
    code = inflate(&stream, Z_NO_FLUSH);
    text.resize(done + kChunkBytes - stream.avail_out);
    const bool more = stream.avail_in > 0 || !bytes.empty();
    if (code == Z_STREAM_END && more) code = inflateReset(&stream);
  }
  inflateEnd(&stream);
  if (static_cast<int64_t>(text.size()) > text_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("it unpacks to more than %d bytes; replay a part of it", text_bytes_max));
  }
  if (code == Z_STREAM_END) return text;
  return absl::InvalidArgumentError("gzip data is damaged or cut; fetch the file again");
}

absl::StatusOr<Trace> ReadTrace(const std::string& path, const AgenticOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  if (text.substr(0, kGzipMagic.size()) == kGzipMagic) {
    absl::StatusOr<std::string> unpacked = Gunzip(text, kTextBytesMax);
    if (!unpacked.ok()) {
      return absl::Status(unpacked.status().code(),
                          absl::StrCat(path, ": ", unpacked.status().message()));
    }
    text = *std::move(unpacked);
  }
  PAGODA_ASSIGN_OR_RETURN(Trace trace, ParseTrace(text, path, options));
  trace.set_name(NameOf(path));
  return trace;
}

}  // namespace pagoda::replay
