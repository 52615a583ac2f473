#!/usr/bin/env bash
# Prints the folder that downloads are kept in. The same rule as client/worker/model_path.h.
set -euo pipefail
if [[ -n "${PAGODA_CACHE_DIR:-}" ]]; then
  echo "$PAGODA_CACHE_DIR"
elif [[ -n "${XDG_CACHE_HOME:-}" ]]; then
  echo "$XDG_CACHE_HOME/pagoda"
elif [[ -n "${HOME:-}" ]]; then
  echo "$HOME/.cache/pagoda"
else
  echo "no cache folder: set PAGODA_CACHE_DIR" >&2
  exit 1
fi
