#include "kernels/isa.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/simd_targets.h"
//
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace pagoda::kernels {
namespace {

struct Isa {
  const char* name;
  int64_t target;
};

bool HasIntegerDots() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

// Of the processor, whatever was chosen before.
int64_t Here() {
  static const int64_t targets = hwy::SupportedTargets();
  return targets;
}

std::vector<Isa> Isas() {
  std::vector<Isa> isas;
  const int64_t here = Here();
  const auto add = [&](const char* name, int64_t target) {
    if ((here & target) != 0) isas.push_back({name, target});
  };
#if HWY_ARCH_X86
  if (HasIntegerDots()) add("avx512-vnni", HWY_AVX3);
  add("avx512", HWY_AVX3);
  add("avx2", HWY_AVX2);
  add("sse4", HWY_SSE4);
#else
  add("neon", HWY_NEON);
#endif
  isas.push_back({"portable", HWY_STATIC_TARGET});
  return isas;
}

}  // namespace

std::vector<std::string> AvailableIsas() {
  std::vector<std::string> names;
  for (const Isa& isa : Isas()) names.emplace_back(isa.name);
  return names;
}

absl::Status UseIsa(absl::string_view name) {
  for (const Isa& isa : Isas()) {
    if (name != isa.name) continue;
    hwy::SetSupportedTargetsForTest(isa.target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is not an instruction set of this machine; there are ",
                   absl::StrJoin(AvailableIsas(), ", ")));
}

}  // namespace pagoda::kernels
