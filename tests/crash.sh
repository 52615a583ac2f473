#!/usr/bin/env bash
# Kills pagodad under load, again and again, and checks every byte that comes back.
#
#   tests/crash.sh [--kills N] [--seed S] [--seconds T] [--build-dir DIR]
#
# By default 200 kills. Exit code 0 when no invariant was violated; the last line says so, and the
# seed that repeats the run. What is checked stands in tests/README.md.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

build_dir=build/release
arguments=()
while (($# > 0)); do
  case "$1" in
    --build-dir) build_dir=${2:?--build-dir needs a folder} && shift 2 ;;
    -h | --help)
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
      exit 0
      ;;
    *) arguments+=("$1") && shift ;;
  esac
done

if [[ $build_dir == build/release && ! -f $build_dir/build.ninja ]]; then
  cmake --preset release > /dev/null
fi
cmake --build "$build_dir" --target crash_loop pagodad > /dev/null
exec "$build_dir/bin/crash_loop" "${arguments[@]}"
