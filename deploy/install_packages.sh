#!/usr/bin/env bash
# Installs the Debian packages that Pagoda is built, fed and tested with. Asks for nothing, starts
# no service, and is done at once when nothing is missing.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: deploy/install_packages.sh [SET ...]        (default: build data)

  build      compiler, CMake and the libraries that Pagoda stands on
  data       what fetches the model and the texts: python3, pip, unzip
  python     what client/python is built with: build, headers of Python, venv; curl for deploy/serve-demo.sh
  test       build, data, python, and what the whole test suite needs: promtool, PyYAML, fio, mkfs.ext4, openssl
  sanitize   clang and its sanitizer runtime, clang-tidy, clang-format

For Debian 12; Debian 13 has the same names. Root is needed only when something is missing.
promtool is taken out of the package `prometheus` into /usr/local/bin: installing that package
would start a server.
TEXT
}

build=(
  g++ cmake ninja-build ccache mold git ca-certificates pkg-config
  libabsl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  librocksdb-dev prometheus-cpp-dev libspdlog-dev libfmt-dev libcli11-dev libyaml-cpp-dev
  nlohmann-json3-dev libpcre2-dev libhwy-dev libdnnl-dev libjemalloc-dev libssl-dev zlib1g-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
data=(python3 python3-pip unzip ca-certificates)
python=(python3-dev python3-venv curl)
testing=(python3-yaml curl fio e2fsprogs openssl)
sanitize=(clang clang-tidy clang-format llvm)

die() {
  echo "install_packages: $*" >&2
  exit 1
}

wanted=()
want_promtool=no
(($# > 0)) || set -- build data
for set_name in "$@"; do
  case "$set_name" in
    build) wanted+=("${build[@]}") ;;
    data) wanted+=("${data[@]}") ;;
    python) wanted+=("${build[@]}" "${data[@]}" "${python[@]}") ;;
    test)
      wanted+=("${build[@]}" "${data[@]}" "${python[@]}" "${testing[@]}")
      want_promtool=yes
      ;;
    sanitize) wanted+=("${sanitize[@]}") ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
done

command -v dpkg-query > /dev/null || die "this is not a Debian or Ubuntu system; build, see README.md"

# Those of the named packages that are not installed, one a line.
missing_of() {
  comm -13 \
    <(dpkg-query -W -f '${db:Status-Abbrev} ${binary:Package}\n' |
      sed -n 's/^.i.* \([^:]*\).*/\1/p' | sort -u) \
    <(printf '%s\n' "$@" | sort -u)
}

# The runtime of the sanitizers and of libFuzzer is a package named after clang's version.
clang_runtime() {
  echo "libclang-rt-$(clang --version | sed -n 's/.*clang version \([0-9]*\).*/\1/p')-dev"
}

need_root() {
  [[ $(id -u) == 0 ]] || die "these are missing, and installing them needs root: $*
  run: sudo $(realpath "$0") $sets"
}

lists_updated=no
update_lists() {
  [[ $lists_updated == no ]] || return 0
  echo "install_packages: apt-get update"
  # Another repository of the machine may be down; what matters is whether ours install.
  apt-get update -qq > "$log" 2>&1 || tail -n 3 "$log" >&2
  lists_updated=yes
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

install_missing() {
  (($# > 0)) || return 0
  need_root "$@"
  echo "install_packages: installing $*"
  # Old lists name versions that are gone: on any failure refresh them and try once more.
  apt_install "$@" > "$log" 2>&1 && return 0
  update_lists
  apt_install "$@" > "$log" 2>&1 && return 0
  tail -n 20 "$log" >&2
  die "apt-get could not install: $*"
}

download_prometheus() {
  (cd "$scratch" && apt-get download -qq -o APT::Sandbox::User=root prometheus > "$log" 2>&1)
}

install_promtool() {
  need_root promtool
  echo "install_packages: promtool into /usr/local/bin"
  if ! download_prometheus; then
    update_lists
    download_prometheus || {
      cat "$log" >&2
      die "the package prometheus could not be downloaded"
    }
  fi
  dpkg-deb --fsys-tarfile "$scratch"/prometheus_*.deb | tar -x -C "$scratch" ./usr/bin/promtool
  install -m 755 "$scratch/usr/bin/promtool" /usr/local/bin/promtool
}

sets="$*"
scratch=$(mktemp -d)
log="$scratch/log"
trap 'rm -rf "$scratch"' EXIT

mapfile -t missing < <(missing_of "${wanted[@]}")
install_missing "${missing[@]}"
if [[ " $sets " == *" sanitize "* ]]; then
  mapfile -t missing < <(missing_of "$(clang_runtime)")
  install_missing "${missing[@]}"
fi
if [[ $want_promtool == yes ]] && ! command -v promtool > /dev/null; then install_promtool; fi
echo "install_packages: all there ($sets)"
