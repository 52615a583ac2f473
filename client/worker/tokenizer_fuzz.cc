// libFuzzer entry: any bytes are text. Encoding neither crashes nor hangs, gives ids of the
// vocabulary, and decodes to the repaired text; and any bytes are a vocabulary that is refused or
// works. The first byte chooses which.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/worker/testing/random_llama.h"
#include "client/worker/tokenizer.h"
#include "client/worker/utf8.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

std::unique_ptr<Tokenizer> MakeByteTokenizer() {
  GgufWriter writer;
  AddByteTokenizer(/*vocab_size=*/300, &writer);
  const std::string bytes = writer.Finish();
  const absl::StatusOr<GgufFile> file = GgufFile::FromBytes(AsBytes(bytes));
  PAGODA_CHECK(file.ok());
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromGguf(*file);
  PAGODA_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

void FuzzText(absl::string_view text) {
  static const Tokenizer* const tokenizer = MakeByteTokenizer().release();
  const std::string repaired = ReplaceInvalidUtf8(text);
  PAGODA_CHECK(ValidUtf8Prefix(repaired) == repaired.size());
  for (const ParseSpecial parse : {ParseSpecial::kNo, ParseSpecial::kYes}) {
    const std::vector<uint32_t> tokens = tokenizer->Encode(text, parse);
    for (const uint32_t token : tokens) PAGODA_CHECK(token < tokenizer->vocab_size());
    // Every byte has a token here, so nothing is lost.
    PAGODA_CHECK(tokenizer->Decode(tokens) == repaired);
  }
}

void FuzzVocabulary(absl::string_view bytes) {
  const absl::StatusOr<GgufFile> file = GgufFile::FromBytes(AsBytes(bytes));
  if (!file.ok()) return;
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromGguf(*file);
  if (!tokenizer.ok()) return;
  const std::vector<uint32_t> tokens = (*tokenizer)->Encode(bytes, ParseSpecial::kYes);
  for (const uint32_t token : tokens) PAGODA_CHECK(token < (*tokenizer)->vocab_size());
  (void)(*tokenizer)->Decode(tokens);
}

}  // namespace
}  // namespace pagoda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 == 0) {
    pagoda::FuzzText(rest);
  } else {
    pagoda::FuzzVocabulary(rest);
  }
  return 0;
}
