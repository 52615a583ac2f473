#!/usr/bin/env bash
# LMCache beside vLLM for the comparison of vllm_ttft.sh, in an environment of its own that sees
# vLLM's packages: 230 MB more. Prints its path.
set -euo pipefail

if (($# > 0)); then
  echo "usage: tests/engines/setup_lmcache.sh"
  echo "Makes \${PAGODA_LMCACHE_VENV:-build/lmcache-venv} on top of what setup_vllm.sh makes."
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi

here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
vllm=$("$BASH" "$here/setup_vllm.sh")
venv=${PAGODA_LMCACHE_VENV:-$root/build/lmcache-venv}
if "$venv/bin/python" -c 'import vllm, lmcache.lmcache_native' > /dev/null 2>&1; then
  realpath "$venv"
  exit 0
fi
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$vllm/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' \
  > "$site/zz_vllm.pth"
# What a CPU does not import stays away: cupy, CUDA's bindings, the cloud stores.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps lmcache==0.5.6 \
  aiofile caio aiofiles awscrt nvtx sortedcontainers redis 'numpy<=2.2.6' \
  'prometheus_client<=0.24.1' 'opentelemetry-exporter-prometheus<=0.61b0' httptools uvicorn \
  pytest setuptools_scm 'setuptools<81,>=77' >&2
"$venv/bin/python" -c 'import vllm, lmcache.lmcache_native' > /dev/null 2>&1 || {
  echo "setup_lmcache: LMCache does not start in $venv; remove it and run this again" >&2
  exit 1
}
realpath "$venv"
