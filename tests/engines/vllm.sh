#!/usr/bin/env bash
# vLLM with Pagoda, end to end: is a greedy output ever another one because of the cache? See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/engines/vllm.sh [--short]

Runs vLLM's CPU build on 50 prompts (shared prefixes, conversations, aborts, preemptions; --short: 12)
and compares the greedy outputs of
  off      no connector
  cold     the connector, and a daemon that has nothing
  warm     the same engine again, its own prefix cache emptied
  other    another engine process
  async    another one, that loads between its steps
  killed   a daemon that is killed in the middle and started again
  absent   no daemon at all
Sets everything up that is missing but pagodad: build/release/bin/pagodad. Exit code 1: an output
differs, or a warm run found nothing.
Environment: PAGODA_VLLM_VENV, PAGODA_CACHE_DIR, OMP_NUM_THREADS (2).
TEXT
}

prompts=50
case "${1:-}" in
  "") ;;
  --short) prompts=12 ;;
  -h | --help)
    usage
    exit 0
    ;;
  *)
    echo "$(basename "$0"): unknown argument '$1'" >&2
    usage >&2
    exit 2
    ;;
esac

here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=SCRIPTDIR/engine_env.sh
. "$here/engine_env.sh"
folder=$(mktemp -d)
daemon=
finish() {
  [[ -z $daemon ]] || kill "$daemon" 2> /dev/null || true
  rm -rf "$folder"
}
trap finish EXIT

start_daemon() {
  daemon=$("$BASH" "$here/daemon.sh" start "$folder/data" "$folder/pagoda.sock")
}
stop_daemon() {
  "$BASH" "$here/daemon.sh" stop "$daemon"
  daemon=
  rm -rf "$folder/data"
}
# kv SOCKET [MORE OPTIONS]
kv() {
  printf '{"kv_connector": "PagodaConnector", "kv_connector_module_path": "pagoda_kv.vllm",
    "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"target": "unix:%s"%s}}' "$1" "${2:-}"
}
# run NAME [ARGUMENTS ...]: outputs go to $folder/NAME.0, .1, ...
run() {
  local name=$1
  shift
  echo "vllm: $name" >&2
  "$venv/bin/python" "$here/vllm_prompts.py" "$model" "$folder/$name" --prompts "$prompts" "$@" \
    > "$folder/$name.log" 2>&1 || {
    tail -n 30 "$folder/$name.log" >&2
    echo "vllm: the engine failed in run $name" >&2
    exit 1
  }
  grep '^RUN' "$folder/$name.log" | sed "s/^RUN/$name/"
  grep -h 'pagoda:' "$folder/$name.log" | sed 's/^/    /' || true
}

run off
start_daemon
run on --kv "$(kv "$folder/pagoda.sock")" --rounds 2
run other --kv "$(kv "$folder/pagoda.sock")"
run async --kv "$(kv "$folder/pagoda.sock" ', "async_load": true')"
stop_daemon
start_daemon
run killed --kv "$(kv "$folder/pagoda.sock")" \
  --half "$BASH $here/daemon.sh restart $daemon $folder/data $folder/pagoda.sock > $folder/pid"
daemon=$(cat "$folder/pid")
stop_daemon
run absent --kv "$(kv "$folder/nobody.sock")"

"$venv/bin/python" "$here/compare_outputs.py" "$folder" "$prompts"
