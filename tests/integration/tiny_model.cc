// Writes a random Llama GGUF for the integration tests: tiny_model FILE SEED [LAYERS]
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "client/worker/testing/random_llama.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tiny_model FILE SEED [LAYERS]\n");
    return 2;
  }
  pagoda::RandomLlamaOptions options;
  options.seed = std::strtoull(argv[2], nullptr, 10);
  options.context_tokens = 2048;
  if (argc > 3) options.layer_count = static_cast<uint32_t>(std::atoi(argv[3]));
  const std::string bytes = pagoda::RandomLlama(options);
  std::ofstream(argv[1], std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return 0;
}
