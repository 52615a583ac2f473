#!/usr/bin/env bash
# Two vLLM engines that share one Pagoda, under load, with figures. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: deploy/serve-demo.sh [--quick] [--keep] [-- ARGUMENTS OF serve_demo/load.py ...]

  1  what deploy/quickstart.sh needs, and pagodad
  2  vLLM's CPU build, the Python package pagoda-kv (a virtual environment of 2.7 GB, once), and a
     small model (SmolLM2-135M-Instruct) in the form that vLLM reads
  3  one engine without Pagoda answers the questions of serve_demo/load.py
  4  two engines with Pagoda and one pagodad answer the same ones:
       cold            engine A, nothing is known
       warm            engine A, its own prefix cache emptied before
       other engine    engine B, which never saw them
       after restart   engine B, its cache emptied, after pagodad was killed (kill -9) and started again

  --quick   fewer and shorter questions
  --keep    leave the engines and pagodad running at the end, and say where

About ten minutes after the set-up on two cores without a GPU; 9 GiB of memory. Ctrl-C ends everything.
Results: build/serve-demo/load.json; logs beside it.
Environment: PAGODA_VLLM_VENV   the virtual environment (build/vllm-venv)
             PAGODA_CACHE_DIR   where the model and the texts go
TEXT
}

quick=
keep=
load_arguments=()
while (($# > 0)); do
  case "$1" in
    --quick) quick=1 ;;
    --keep) keep=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    --)
      shift
      load_arguments=("$@")
      break
      ;;
    *)
      echo "serve-demo: unknown argument '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

root=$(dirname "$(dirname "$(realpath "$0")")")
cd "$root"
out=$root/build/serve-demo
mkdir -p "$out"

step_count=4
step_number=0
step() {
  step_number=$((step_number + 1))
  echo
  echo "==> $step_number/$step_count  $*"
}

pids=()
stop_all() {
  local pid
  for pid in "${pids[@]}"; do kill -TERM "-$pid" 2> /dev/null || true; done
  for pid in "${pids[@]}"; do
    for _ in $(seq 50); do
      kill -0 "-$pid" 2> /dev/null || break
      sleep 0.2
    done
    kill -KILL "-$pid" 2> /dev/null || true
  done
  pids=()
}
on_exit() {
  local status=$?
  if [[ -z $keep || $status -ne 0 ]]; then stop_all; fi
  if ((status != 0)); then
    echo "serve-demo: step $step_number/$step_count failed; logs are in $out" >&2
  fi
}
trap on_exit EXIT
trap 'exit 130' INT TERM

# start LOG COMMAND ...: in a process group of its own, which engines need: they start others.
start() {
  local log=$1
  shift
  setsid "$@" > "$log" 2>&1 < /dev/null &
  pids+=($!)
}

# await URL SECONDS LOG
await() {
  local url=$1 seconds=$2 log=$3
  local end=$((SECONDS + seconds))
  until curl -fsS -m 2 -o /dev/null "$url" 2> /dev/null; do
    if ((SECONDS >= end)) || ! kill -0 "${pids[-1]}" 2> /dev/null; then
      echo "serve-demo: nothing answers at $url; the end of $log:" >&2
      tail -n 15 "$log" >&2
      return 1
    fi
    sleep 0.5
  done
}

step "packages and pagodad"
bash deploy/install_packages.sh python
if [[ ! -f build/release/build.ninja ]]; then
  cmake --preset release > "$out/configure.log" 2>&1 || {
    tail -n 30 "$out/configure.log" >&2
    exit 1
  }
fi
cmake --build --preset release --target pagodad pagoda

step "vLLM, pagoda-kv, a model and texts (the first time: some minutes)"
# shellcheck source=tests/engines/engine_env.sh
. tests/engines/engine_env.sh
python=$venv/bin/python
texts=$(bash deploy/fetch_texts.sh | tail -n 1)
export VLLM_HOST_IP=127.0.0.1
export VLLM_SERVER_DEV_MODE=1 # for /reset_prefix_cache
engine=("$python" -m vllm.entrypoints.openai.api_server --model "$model" --host 127.0.0.1
  --served-model-name smollm2 --dtype float32 --enforce-eager --max-model-len 4096
  --max-num-seqs 4 --block-size 32)
# 32 tokens a block: chats of a few turns fill some.

if [[ -n $quick ]]; then
  load_arguments=(--documents 1 --document-chars 1800 --chats 1 --turns 2 "${load_arguments[@]}")
fi
load() { # NAME=URL ...
  local phases=() phase
  for phase in "$@"; do phases+=(--phase "$phase"); done
  "$python" deploy/serve_demo/load.py --texts "$texts" "${load_arguments[@]}" \
    "${phases[@]}" --json "$out/load.json" --baseline "$out/load.json"
}
rm -f "$out"/*.json

step "without Pagoda"
start "$out/engine-off.log" "${engine[@]}" --port 8210
await http://127.0.0.1:8210/health 300 "$out/engine-off.log"
load off=http://127.0.0.1:8210
stop_all

step "with Pagoda"
pagodad=(build/release/bin/pagodad --data-dir "$out/data" --listen "unix:$out/pagoda.sock"
  --metrics-listen 127.0.0.1:8213 --host-capacity 2GiB --ssd-capacity 8GiB)
rm -rf "$out/data"
start "$out/pagodad.log" "${pagodad[@]}"
pagodad_pid=${pids[-1]}
await http://127.0.0.1:8213/metrics 30 "$out/pagodad.log"
transfer=$(printf '{"kv_connector":"PagodaConnector","kv_connector_module_path":"pagoda_kv.vllm","kv_role":"kv_both","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"target":"unix:%s"}}' "$out/pagoda.sock")
for name in a b; do
  port=$([[ $name == a ]] && echo 8211 || echo 8212)
  start "$out/engine-$name.log" "${engine[@]}" --port "$port" --kv-transfer-config "$transfer"
  await "http://127.0.0.1:$port/health" 300 "$out/engine-$name.log"
done
forget() { curl -fsS -m 30 -X POST -o /dev/null "http://127.0.0.1:$1/reset_prefix_cache"; }

load cold=http://127.0.0.1:8211
forget 8211
load warm=http://127.0.0.1:8211
load other-engine=http://127.0.0.1:8212
build/release/bin/pagoda flush --daemon "unix:$out/pagoda.sock" > /dev/null
kill -KILL "-$pagodad_pid"
wait "$pagodad_pid" 2> /dev/null || true
start "$out/pagodad.log" "${pagodad[@]}"
await http://127.0.0.1:8213/metrics 60 "$out/pagodad.log"
sleep 2  # the engines' clients come back by themselves
forget 8212
load after-restart=http://127.0.0.1:8212

echo
build/release/bin/pagoda status --daemon "unix:$out/pagoda.sock" | head -n 20
echo
echo "Results and logs: $out"
if [[ -n $keep ]]; then
  echo "Left running: engines at http://127.0.0.1:8211 and :8212, pagodad at unix:$out/pagoda.sock"
  printf 'End them: kill %s\n' "$(printf -- '-%s ' "${pids[@]}")"
fi
