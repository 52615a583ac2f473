#!/usr/bin/env bash
# Keeps pagodad under load for half an hour, and says whether memory, files and counts stayed put.
#
#   tests/soak.sh [--minutes N] [--seed S] [--csv FILE] [--build-dir DIR]
#
# Exit code 0 when they did. tests/integration/soak.py says what is checked.
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
PAGODA_BIN_DIR=$PWD/$build_dir/bin exec python3 tests/integration/soak.py \
  --csv "$build_dir/soak.csv" "${arguments[@]}"
