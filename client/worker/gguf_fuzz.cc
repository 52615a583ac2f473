// libFuzzer entry: no bytes may make GgufFile read beyond them, hang or take unbounded memory. What
// parses is read through every getter and every tensor is looked at.
#include <cstddef>
#include <cstdint>

#include "client/worker/gguf.h"
#include "client/worker/llama_config.h"
#include "storage/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const pagoda::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  const absl::StatusOr<pagoda::GgufFile> file = pagoda::GgufFile::FromBytes(bytes);
  if (!file.ok()) return 0;
  uint64_t sum = 0;
  for (const auto& [key, value] : file->metadata()) {
    sum += file->GetUint(key).ok() + file->GetFloat(key).ok() + file->GetBool(key).ok();
    if (const auto text = file->GetString(key); text.ok()) sum += text->size();
    if (const auto strings = file->GetStrings(key); strings.ok()) {
      for (const absl::string_view text : *strings) sum += text.empty() ? 0 : text.back();
    }
    if (const auto ints = file->GetInts(key); ints.ok()) sum += ints->size();
  }
  for (const pagoda::GgufTensor& tensor : file->tensors()) {
    PAGODA_CHECK(!tensor.data.empty());
    sum += static_cast<uint64_t>(tensor.data.front()) + static_cast<uint64_t>(tensor.data.back());
    PAGODA_CHECK(file->FindTensor(tensor.name) != nullptr);
  }
  sum += pagoda::ReadLlamaConfig(*file).ok();
  volatile uint64_t sink = sum;
  (void)sink;
  return 0;
}
