# shellcheck shell=bash
# For scripts that run vLLM on this machine: sets venv, model and the environment. Needs $root.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-WARNING}
venv=$("$BASH" "$root/tests/engines/setup_vllm.sh")
if ! "$venv/bin/python" -c 'import pagoda_kv._core' > /dev/null 2>&1; then
  echo "building the Python package" >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$root/client/python" >&2
fi
model=$("$BASH" "$root/deploy/cache_folder.sh")/models/smollm2-hf
if [[ ! -f $model/model.safetensors ]]; then
  "$venv/bin/python" "$root/tests/engines/convert_smollm2.py" \
    "$("$BASH" "$root/deploy/fetch_model.sh")" "$model" >&2
fi
