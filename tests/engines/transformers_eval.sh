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
    same tokens, where that program is built
Takes about 15 minutes for 4,096 tokens, 5 with --short (1,024), most of it bfloat16. Sets everything up that is missing
but build/release/bin/pagodad. Exit code 1: raw16 differs, or a KL is above 1.2 times the worker's, beyond its error.
Environment: PAGODA_VLLM_VENV, PAGODA_CACHE_DIR, PAGODA_BUILD_DIR (build/release), OMP_NUM_THREADS (2).
TEXT
}

text=legal tokens=4096 runs=("bfloat16 256 16" "float32 1500 48")
while (($# > 0)); do
  case $1 in
    --text) text=${2:?} && shift ;;
    --tokens) tokens=${2:?} && shift ;;
    --short) tokens=1024 runs=("bfloat16 128 8" "float32 500 16") ;;
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
for run in "${runs[@]}"; do
  read -r dtype document new <<< "$run"
  echo "$dtype, $document tokens of $text"
  "$venv/bin/python" "$here/transformers_generate.py" "$model" "$file" \
    "unix:$folder/pagoda.sock" --dtype "$dtype" --document "$document" --new "$new" \
    --threads "$OMP_NUM_THREADS"
done
worker=()
pagoda=${PAGODA_BUILD_DIR:-$root/build/release}/bin/pagoda
if [[ -x $pagoda ]]; then
  "$pagoda" eval ppl --text "$text" --tokens "$tokens" --window 128 \
    --json "$folder/worker.json" >&2
  worker=(--worker "$folder/worker.json")
fi
"$venv/bin/python" "$here/transformers_eval.py" "$model" "$file" --tokens "$tokens" --window 128 \
  --threads "$OMP_NUM_THREADS" "${worker[@]}"
