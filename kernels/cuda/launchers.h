// Between the checks, which any compiler builds (cuda_ops.cc), and the kernels, which nvcc does or
// simt.h: each enqueues one op whose parameters were validated. Null, or why the launch failed.
#pragma once

#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/codec_cuda.h"
#include "kernels/cuda/gather_cuda.h"
#include "kernels/cuda/page_score_cuda.h"
#include "kernels/cuda/position_shift_cuda.h"

namespace pagoda::kernels::cuda {

const char* LaunchDecode(const DecodeParams& params, Stream stream);
const char* LaunchDecodeMma(const DecodeParams& params, Stream stream);
const char* LaunchMerge(const MergeParams& params, Stream stream);
const char* LaunchEncode(const EncodeParams& params, Stream stream);
const char* LaunchDequantize(const DequantizeParams& params, Stream stream);
const char* LaunchBuildDigests(const BuildDigestParams& params, Stream stream);
const char* LaunchScorePages(const DeviceScoreParams& params, Stream stream);
const char* LaunchTurnQueries(const TurnQueriesParams& params, Stream stream);
const char* LaunchGather(const GatherParams& params, Stream stream);

}  // namespace pagoda::kernels::cuda
