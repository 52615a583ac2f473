#!/usr/bin/env bash
# Runs every fuzz target for a while, from seeds, from what it has found before and what it finds
# now. Without --seconds the time of all targets together is below two minutes.
#
#   tests/fuzz/run_fuzz.sh [--build-dir DIR] [--seconds N] [TARGET ...]
#
# Build them first: cmake --preset fuzz && cmake --build --preset fuzz
# A finding stops the target with its input kept in DIR/fuzz/TARGET/findings; run the binary with
# that file to see it again. Exit code 1 when a target found something, or none was built.
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/../.." || exit

build_dir=build/fuzz
seconds=
targets=()
while (($# > 0)); do
  case "$1" in
    --build-dir) build_dir=$2 && shift 2 ;;
    --seconds) seconds=$2 && shift 2 ;;
    -h | --help)
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) targets+=("$1") && shift ;;
  esac
done
if ((${#targets[@]} == 0)); then
  for binary in "$build_dir"/bin/*_fuzz; do targets+=("$(basename "$binary")"); done
fi
[[ -n $seconds ]] || seconds=$((100 / ${#targets[@]}))
((seconds > 0)) || seconds=1

export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0
export UBSAN_OPTIONS=print_stacktrace=1
[[ ! -f tests/asan.supp ]] || export LSAN_OPTIONS=suppressions=$PWD/tests/asan.supp

"$build_dir/bin/fuzz_seeds" "$build_dir/fuzz" > /dev/null || exit

passed=0
failed=0
for target in "${targets[@]}"; do
  folder=$build_dir/fuzz/$target
  mkdir -p "$folder/corpus" "$folder/seeds" "$folder/findings"
  log=$folder/log
  if "$build_dir/bin/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -max_len=16384 -print_final_stats=1 -artifact_prefix="$folder/findings/" \
    "$folder/corpus" "$folder/seeds" > "$log" 2>&1; then
    passed=$((passed + 1))
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
    echo "  ok    $target: ${runs:-?} inputs in $seconds s, coverage ${coverage:-?}"
  else
    failed=$((failed + 1))
    echo "  FAIL  $target: see $log"
    tail -n 30 "$log"
  fi
done
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
