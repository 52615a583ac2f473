#!/usr/bin/env bash
# Transformers with Pagoda on a real model: are answers equal at raw16, and what do q8 and q4 cost?
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/engines/transformers_eval.sh [--text legal|tech|prose] [--tokens N] [--short]

With SmolLM2-135M-Instruct and a daemon of its own:
  - generate() with a PagodaCache beside the default cache, cold and warm: in bfloat16, exact, and in
    float32, longer, since few processors are quick at bfloat16
  - NLL and KL of q8 and q4, window 128, paired with raw16 (float32), beside `pagoda eval ppl` on the
    same tokens, where build/release/bin/pagoda is there
Takes about 10 minutes for 4,096 tokens, 2 with --short (1,024). Sets everything up that is missing
but build/release/bin/pagodad. Exit code 1: raw16 differs, or a KL is above 1.2 times the worker's, beyond its error.
Environment: PAGODA_VLLM_VENV, PAGODA_CACHE_DIR, OMP_NUM_THREADS (2).
TEXT
}

text=legal tokens=4096
while (($# > 0)); do
  case $1 in
    --text) text=${2:?} && shift ;;
    --tokens) tokens=${2:?} && shift ;;
    --short) tokens=1024 ;;
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

here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/engines/engine_env.sh
. "$here/engine_env.sh"
file=$("$BASH" "$root/deploy/cache_folder.sh")/texts/$text.txt
[[ -f $file ]] || "$BASH" "$root/deploy/fetch_texts.sh" >&2
folder=$(mktemp -d)
daemon=
finish() {
  [[ -z $daemon ]] || kill "$daemon" 2> /dev/null || true
  rm -rf "$folder"
}
trap finish EXIT

# Pages that left every window stay raw16 for those who read nothing else.
daemon=$(PAGODA_LADDER=raw16 "$BASH" "$here/daemon.sh" start "$folder/data" "$folder/pagoda.sock")
for run in "bfloat16 256 16" "float32 1500 48"; do
  read -r dtype document new <<< "$run"
  echo "$dtype, $document tokens of $text"
  "$venv/bin/python" "$here/transformers_generate.py" "$model" "$file" \
    "unix:$folder/pagoda.sock" --dtype "$dtype" --document "$document" --new "$new" \
    --threads "$OMP_NUM_THREADS"
done
worker=()
if [[ -x $root/build/release/bin/pagoda ]]; then
  "$root/build/release/bin/pagoda" eval ppl --text "$text" --tokens "$tokens" --window 128 \
    --json "$folder/worker.json" >&2
  worker=(--worker "$folder/worker.json")
fi
"$venv/bin/python" "$here/transformers_eval.py" "$model" "$file" --tokens "$tokens" --window 128 \
  --threads "$OMP_NUM_THREADS" "${worker[@]}"
