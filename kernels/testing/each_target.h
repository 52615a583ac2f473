// Runs a test body once per SIMD target that this processor has, and names it on failure.
#pragma once

#include "kernels/simd_targets.h"
//
#include <gtest/gtest.h>

#include "hwy/targets.h"

namespace pagoda::kernels {

template <typename F>
void ForEachTarget(F body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace pagoda::kernels
