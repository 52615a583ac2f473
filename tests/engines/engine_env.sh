# shellcheck shell=bash
# For scripts that run vLLM on this machine: sets venv, model and the environment. Needs $root.
# shellcheck disable=SC2154 # root
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-WARNING}
venv=$("$BASH" "$root/tests/engines/setup_vllm.sh")
# The package of this checkout, built again when a source of it is newer.
installed=$venv/pagoda_kv.installed
if [[ ! -e $installed ]] || [[ -n $(find "$root/client" "$root/kernels" "$root/storage/base" \
  "$root/proto" \( -name '*.py' -o -name '*.cc' -o -name '*.h' -o -name '*.proto' \) \
  -newer "$installed" -print -quit) ]]; then
  echo "building the Python package" >&2
  wheel=$("$BASH" "$root/client/python/run_tests.sh" --python "$venv/bin/python" --only-build |
    tail -n 1)
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall \
    "$wheel" >&2
  touch "$installed"
fi
model=$("$BASH" "$root/deploy/cache_folder.sh")/models/smollm2-hf
if [[ ! -f $model/model.safetensors ]]; then
  "$venv/bin/python" "$root/tests/engines/convert_smollm2.py" \
    "$("$BASH" "$root/deploy/fetch_model.sh")" "$model" >&2
fi
