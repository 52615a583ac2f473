#include "client/cli/available_memory.h"

#include <fstream>
#include <string>

namespace pagoda::cli {

int64_t AvailableMemoryBytes() {
  std::ifstream in("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  std::string rest;
  while (in >> name >> kib && std::getline(in, rest)) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return INT64_MAX;
}

}  // namespace pagoda::cli
