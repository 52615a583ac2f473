#!/usr/bin/env bash
# Sets everything up and runs every test. See --help.
set -uo pipefail
cd "$(dirname "$(realpath "$0")")/.." || exit

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--quick | --full] [--only STEP ...] [--jobs N]

Steps, in this order:
  packages   what is missing of the Debian packages (needs root only then)
  data       the reference model and the texts; without them the tests that need them are skipped
  tidy       style rules that a machine can check
  release    g++, optimised: builds everything, runs all tests
  python     the Python package: wheel and sdist, types, its tests against the daemon of release
  simulation 2,000 seeded stories of the store's pure core, 10,000 steps each
  asan       clang, AddressSanitizer and UndefinedBehaviorSanitizer: the fast tests outside of the
             command line (label sanitize); what they stand on builds without a thread-safety error
  tsan       ThreadSanitizer: those of them in which threads meet (label threaded)
  dev        clang in debug, every header compiled alone (--full, or --only dev)
  fuzz       libFuzzer on every parser of outside bytes, two minutes in all

  --quick    packages, data, tidy, release and python only
  --full     sanitizers and clang on all tests, dev too, fuzzing for 10 minutes
  --only S   this step alone; may be given more than once
  --jobs N   compilers and tests at a time (default: one for each core)

Logs are in build/logs. The last line sums up all test runs: N passed, N failed, N skipped.
TEXT
}

mode=default
only=()
jobs=$(nproc)
while (($# > 0)); do
  case "$1" in
    --quick) mode=quick ;;
    --full) mode=full ;;
    --only)
      only+=("${2:?--only needs a step}")
      shift
      ;;
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

all_steps=(packages data tidy release python simulation asan tsan dev fuzz)
steps=(packages data tidy release python simulation asan tsan fuzz)
[[ $mode != full ]] || steps=("${all_steps[@]}")
[[ $mode != quick ]] || steps=(packages data tidy release python)
((${#only[@]} == 0)) || steps=("${only[@]}")
for step in "${steps[@]}"; do
  [[ " ${all_steps[*]} " == *" $step "* ]] || {
    echo "tests/run.sh: no step '$step'; there are: ${all_steps[*]}" >&2
    exit 2
  }
done

root=$PWD
logs=$root/build/logs
mkdir -p "$logs"
# One compiler cache for every clone of the repository.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
export CTEST_OUTPUT_ON_FAILURE=1 CMAKE_COLOR_DIAGNOSTICS=OFF

passed=0
failed=0
skipped=0
summary=()

# quietly NAME COMMAND ...: output goes to a log, of which the end is shown on failure.
quietly() {
  local log=$logs/$1.log
  shift
  if "$@" > "$log" 2>&1; then return 0; fi
  echo "    failed: $*"
  tail -n 60 "$log" | sed 's/^/    | /'
  echo "    whole log: $log"
  return 1
}

# build PRESET TARGET ...
build() {
  local preset=$1 started=$SECONDS
  shift
  quietly "$preset-configure" cmake --preset "$preset" || return 1
  # A tree of another compiler: CMake starts over and forgets what else the preset says.
  if grep -q 'require your cache to be deleted' "$logs/$preset-configure.log"; then
    rm -rf "build/$preset"
    quietly "$preset-configure" cmake --preset "$preset" || return 1
  fi
  quietly "$preset-build" cmake --build --preset "$preset" --parallel "$jobs" --target "$@" ||
    return 1
  echo "    built ($*) in $((SECONDS - started)) s"
}

# run_ctest PRESET CTEST-ARGUMENT ...: runs, and adds to the sums.
run_ctest() {
  local preset=$1 results=$logs/$1-tests.xml code=0
  shift
  rm -f "$results"
  "${ctest_prefix[@]}" ctest --test-dir "build/$preset" --parallel "$jobs" --no-tests=error \
    --output-junit "$results" "$@" || code=$?
  count_tests "$results" || return 1
  return "$code"
}
ctest_prefix=()

# Adds the figures in a JUnit file of ctest to the sums.
count_tests() {
  local head tests failures skips
  head=$(sed -n '/<testsuite/,/>/p' "$1" 2> /dev/null | tr '\n\t' '  ')
  tests=$(sed -n 's/.* tests="\([0-9]*\)".*/\1/p' <<< "$head")
  failures=$(sed -n 's/.* failures="\([0-9]*\)".*/\1/p' <<< "$head")
  skips=$(sed -n 's/.* skipped="\([0-9]*\)".*/\1/p' <<< "$head")
  [[ -n $tests && -n $failures && -n $skips ]] || return 1
  passed=$((passed + tests - failures - skips))
  failed=$((failed + failures))
  skipped=$((skipped + skips))
  if ((skips > 0)); then
    echo "    skipped: $(sed -n 's/.*<testcase name="\([^"]*\)".*status="notrun".*/\1/p' "$1" |
      tr '\n' ' ')"
  fi
}

step_packages() {
  local sets=(test)
  [[ $mode == quick ]] || sets+=(sanitize)
  "$BASH" deploy/install_packages.sh "${sets[@]}"
}

step_data() {
  "$BASH" deploy/fetch_model.sh && "$BASH" deploy/fetch_texts.sh
}

step_tidy() {
  if python3 tests/tidy_test.py; then passed=$((passed + 1)); else failed=$((failed + 1)) && false; fi
}

step_release() {
  build release all && run_ctest release
}

step_python() {
  local log=$logs/python.log code=0 last
  [[ -x build/release/bin/pagodad ]] || build release pagodad || return 1
  "$BASH" client/python/run_tests.sh > "$log" 2>&1 || code=1
  last=$(tail -n 1 "$log")
  if [[ $last =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + BASH_REMATCH[3]))
    grep '^skipped: ' "$log" | sed 's/^/    /'
  else
    code=1
  fi
  ((code == 0)) || { tail -n 60 "$log" | sed 's/^/    | /'; echo "    whole log: $log"; }
  return "$code"
}

step_simulation() {
  build release simulation || return 1
  if build/release/bin/simulation --seeds 1..2000 --steps 10000 --jobs "$jobs"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    return 1
  fi
}

# sanitized PRESET LABEL [TARGET ...]: builds only what those tests need, and the targets.
sanitized() {
  local preset=$1 label=$2
  shift 2
  if [[ $mode == full ]]; then
    build "$preset" all && run_ctest "$preset" --label-exclude '^bench$'
  else
    build "$preset" "${label}_tests" "$@" && run_ctest "$preset" --label-regex "^$label\$"
  fi
}

step_asan() {
  export ASAN_OPTIONS=detect_leaks=1:halt_on_error=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  [[ ! -f tests/asan.supp ]] ||
    export LSAN_OPTIONS=suppressions=$root/tests/asan.supp:print_suppressions=0
  sanitized asan sanitize pagodad pagoda-worker
}

step_tsan() {
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
  [[ ! -f tests/tsan.supp ]] || TSAN_OPTIONS+=:suppressions=$root/tests/tsan.supp
  # ThreadSanitizer does not know the address layouts of newer kernels: fixed addresses.
  if setarch "$(uname -m)" --addr-no-randomize true 2> /dev/null; then
    ctest_prefix=(setarch "$(uname -m)" --addr-no-randomize)
  fi
  sanitized tsan threaded
  local code=$?
  ctest_prefix=()
  return "$code"
}

step_dev() {
  build dev all all_verify_interface_header_sets && run_ctest dev --label-regex '^fast$'
}

step_fuzz() {
  local log=$logs/fuzz.log code=0 options=()
  build fuzz fuzz_targets || return 1
  local targets
  targets=$(find build/fuzz/bin -name '*_fuzz' | wc -l)
  [[ $mode != full ]] || options=(--seconds $((600 / (targets > 0 ? targets : 1))))
  "$BASH" tests/fuzz/run_fuzz.sh "${options[@]}" > "$log" || code=1
  sed '$d' "$log" | sed 's/^/  /'
  passed=$((passed + $(grep -c '^  ok ' "$log")))
  failed=$((failed + $(grep -c '^  FAIL ' "$log")))
  return "$code"
}

started=$SECONDS
broken=no
number=0
for step in "${steps[@]}"; do
  number=$((number + 1))
  echo
  echo "==> $number/${#steps[@]}  $step"
  step_started=$SECONDS
  failed_before=$failed
  if "step_$step"; then
    result=ok
  elif [[ $step == data ]]; then
    result="not there: tests that need the model are skipped"
  else
    result=FAILED
    broken=yes
    # A build that breaks is a failure too, though no test ran.
    if ((failed == failed_before)); then failed=$((failed + 1)); fi
  fi
  seconds=$((SECONDS - step_started))
  echo "    $step: $result, $seconds s"
  summary+=("$(printf '%-10s %6s s  %s' "$step" "$seconds" "$result")")
  [[ $result != FAILED || $step != packages ]] || break
done

echo
echo "Summary ($((SECONDS - started)) s, $jobs jobs)"
printf '  %s\n' "${summary[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[[ $broken == no ]]
