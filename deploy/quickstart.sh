#!/usr/bin/env bash
# From a fresh clone to a running demo in one command. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: deploy/quickstart.sh [ARGUMENTS OF pagoda demo ...]

  1  installs the Debian packages that are missing (needs root only then)
  2  builds pagodad, pagoda and pagoda-worker into build/release
  3  fetches a small language model (98 MB) and three texts into ~/.cache/pagoda
  4  runs `pagoda demo`: a daemon, workers that share its pages, and figures side by side

Safe to run again: what is there is kept, so the second run goes straight to the demo.
Environment: PAGODA_CACHE_DIR  where the model and the texts go.
TEXT
}

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
esac

root=$(dirname "$(dirname "$(realpath "$0")")")
cd "$root"

step_count=4
step_number=0
started=$SECONDS
step_started=$SECONDS

# step WORDS ...: closes the step before, opens this one.
step() {
  if ((step_number > 0)); then echo "    done in $((SECONDS - step_started)) s"; fi
  step_number=$((step_number + 1))
  step_started=$SECONDS
  echo
  echo "==> $step_number/$step_count  $*"
}

on_failure() {
  echo >&2
  echo "quickstart: step $step_number/$step_count failed; the lines above say why." >&2
  echo "quickstart: run it again when that is mended, it goes on from there." >&2
}
trap on_failure ERR

echo "Pagoda quickstart: packages, build, model, demo. A first run takes minutes, most of them building."

step "packages"
"$BASH" deploy/install_packages.sh build data

step "build (build/release)"
if [[ ! -f build/release/build.ninja ]]; then
  log=build/release/configure.log
  mkdir -p build/release
  cmake --preset release > "$log" 2>&1 || {
    tail -n 30 "$log" >&2
    false
  }
fi
cmake --build --preset release --target pagodad pagoda pagoda-worker

step "model and texts"
"$BASH" deploy/fetch_model.sh
"$BASH" deploy/fetch_texts.sh

step "demo (ready after $((SECONDS - started)) s)"
trap - ERR
exec build/release/bin/pagoda demo "$@"
