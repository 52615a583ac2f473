#!/usr/bin/env bash
# The CUDA kernels and the device memory on the GPUs of this machine. See --help.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."

usage() {
  cat <<'TEXT'
usage: tests/gpu/run.sh [--jobs N]

Builds the kernels with nvcc for the first GPU, runs the tests of kernels/cuda on it, then those of
storage/device: copies and flags, pages between device and pinned host memory layer by layer, memory
exported to a second process, a daemon whose workers read their pages there, and NCCL where two GPUs are. Then times decode attention against a
copy's bandwidth (32 K and 128 K tokens, GQA 1, 4 and 8, raw16, q8 and q4, by single threads and by
tensor cores).
Logs and figures are in build/gpu. Takes under 8 minutes on 8 cores, most of it compilers.

Exit code 0 when all tests passed, 1 when one failed or did not build, 77 where no GPU or no nvcc is.
TEXT
}

jobs=$(nproc)
while (($# > 0)); do
  case "$1" in
    --jobs)
      jobs=${2:?--jobs needs a number}
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift
done

skip() {
  echo "tests/gpu/run.sh: skipped: $*"
  exit 77
}

[[ -e /dev/nvidia0 ]] || skip "no GPU (/dev/nvidia0 does not exist)"
gpu=$(timeout 60 nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2> /dev/null |
  head -n 1) || skip "no GPU (nvidia-smi failed)"
[[ $gpu == *,* ]] || skip "no GPU (nvidia-smi lists none)"
nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || skip "no nvcc to build for the $gpu"
architecture=${gpu##*, }
architecture=${architecture/./}
echo "GPU: $gpu; $("$nvcc" --version | tail -n 1)"

cmake --preset release -B build/gpu -DPAGODA_NVCC="$nvcc" \
  -DPAGODA_CUDA_ARCHITECTURE="$architecture" > /dev/null
started=$SECONDS
cmake --build build/gpu --parallel "$jobs" --target gpu_tests > build/gpu/build.log 2>&1 || {
  tail -n 40 build/gpu/build.log
  echo "tests/gpu/run.sh: the build failed; whole log: build/gpu/build.log" >&2
  exit 1
}
echo "built in $((SECONDS - started)) s"

failed=0
# Kernels first. Exit code 77: the test wants what this machine lacks, and says what.
for name in gather merge_states codec page_score position_shift attention \
  runtime tier_mover memory_export peer_link hbm_tier device_memory peer_fetch; do
  log=build/gpu/$name.log
  timeout 120 "build/gpu/bin/${name}_gpu_test" > "$log" 2>&1 && code=0 || code=$?
  if ((code == 0)); then
    echo "ok   ${name}_gpu_test: $(tail -n 1 "$log")"
  elif ((code == 77)); then
    echo "skip ${name}_gpu_test: $(grep -A 1 -m 1 ': Skipped' "$log" | tail -n 1)"
  else
    tail -n 30 "$log"
    echo "FAIL ${name}_gpu_test: exit code $code"
    failed=1
  fi
done
((failed == 0)) || exit 1

timeout 180 build/gpu/bin/decode_gpu_bench --benchmark_min_time=0.2 \
  --benchmark_out=build/gpu/decode.json --benchmark_out_format=json
