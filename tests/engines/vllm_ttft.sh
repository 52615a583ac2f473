#!/usr/bin/env bash
# Time to first token on vLLM's CPU build: Pagoda, the engine's own prefix cache, LMCache. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/engines/vllm_ttft.sh [--no-lmcache]

One prompt of 2,000 tokens, medians of five prompts in one run; what is asked for:
  warm through Pagoda <= 1.2 x the engine's own hit, <= 1/3 of cold, below LMCache's
  (its MP connector, lmcache_driven); a miss costs <= 3 % more CPU time than no connector.
Give the machine to it alone: about ten minutes on two cores; where that cannot be, OMP_NUM_THREADS=1
is steadier. Exit code 1: one of these does not hold.
TEXT
}

peers="pagoda lmcache"
case "${1:-}" in
  "") ;;
  --no-lmcache) peers=pagoda ;;
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
server=
finish() {
  for pid in $daemon $server; do kill "$pid" 2> /dev/null || true; done
  rm -rf "$folder"
}
trap finish EXIT

measure() {
  local python=$1 label=$2 kv=$3
  shift 3
  "$python" "$here/vllm_ttft.py" "$model" --label "$label" --kv "$kv" "$@" \
    > "$folder/$label.log" 2>&1 || {
    tail -n 30 "$folder/$label.log" >&2
    exit 1
  }
  grep "^$label " "$folder/$label.log"
}

pagoda='{"kv_connector": "PagodaConnector", "kv_role": "kv_both",
  "kv_connector_module_path": "pagoda_kv.vllm", "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {"target": "unix:'"$folder"'/pagoda.sock"}}'
# with_daemon LABEL [ARGUMENTS ...]: a daemon that has nothing, and an engine on it.
with_daemon() {
  local label=$1
  shift
  daemon=$(PAGODA_HOST_CAPACITY=3GiB \
    "$BASH" "$here/daemon.sh" start "$folder/data" "$folder/pagoda.sock")
  measure "$venv/bin/python" "$label" "$pagoda" "$@"
  "$BASH" "$here/daemon.sh" stop "$daemon"
  daemon=
  rm -rf "$folder/data"
}

with_daemon pagoda

if [[ $peers == *lmcache* ]]; then
  # As LMCache is measured: it keeps the engine's blocks, so that its prefix cache cannot be emptied.
  with_daemon pagoda-alone --no-own
  lmcache=$("$BASH" "$here/setup_lmcache.sh")
  setsid "$lmcache/bin/lmcache" server --host 127.0.0.1 --port 15555 --l1-size-gb 3 \
    --eviction-policy LRU --supported-transfer-mode lmcache_driven --http-host 127.0.0.1 \
    --http-port 18081 > "$folder/server.log" 2>&1 < /dev/null &
  server=$!
  for ((tries = 0; tries < 120; ++tries)); do
    (exec 3<> /dev/tcp/127.0.0.1/15555) 2> /dev/null && break
    sleep 0.5
  done
  measure "$lmcache/bin/python" lmcache '{"kv_connector": "LMCacheMPConnector",
    "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {
    "lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 15555,
    "lmcache.mp.mp_transfer_mode": "lmcache_driven"}}' --no-own
fi
"$venv/bin/python" "$here/judge_ttft.py" "$folder"/*.log
