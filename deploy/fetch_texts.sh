#!/usr/bin/env bash
# Makes the three evaluation texts in <cache>/texts out of Debian packages: legal.txt (GPL-3, from
# base-files), tech.txt (a chapter of debian-policy) and prose.txt (a chapter of the package
# anarchism). Nothing is installed: what the system has is used, the rest is downloaded and taken
# apart in a temporary folder. Done at once when the texts are there.
set -euo pipefail

if (($# > 0)); then
  echo "usage: deploy/fetch_texts.sh"
  echo "Puts legal.txt, tech.txt and prose.txt into \$PAGODA_CACHE_DIR/texts, which by default is"
  echo "in ~/.cache/pagoda, and prints the folder."
  [[ $1 == -h || $1 == --help ]] && exit 0
  exit 2
fi

die() {
  echo "fetch_texts: $*" >&2
  exit 1
}

# The texts of Debian 12. Other releases have other versions: usable, but not comparable.
declare -A sha256=(
  [legal]=3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986
  [tech]=f35ce4816e054b21654170f9fd98673e688bc99204a612688fd018e9aebdaa81
  [prose]=73bdddd0804e9ac961e5bb05753260a5dba268b8f2c12750f3318c21f2c03a8e
)
declare -A package=([legal]=base-files [tech]=debian-policy [prose]=anarchism)
declare -A source=(
  [legal]=usr/share/common-licenses/GPL-3
  [tech]=usr/share/doc/debian-policy/policy.html/_sources/ch-controlfields.rst.txt
  [prose]=usr/share/doc/anarchism/html/secF8.html
)

here=$(dirname "$(realpath "$0")")
folder=$("$BASH" "$here/cache_folder.sh")/texts

# is_right FILE NAME: the text of Debian 12.
is_right() {
  [[ -f $1 ]] && echo "${sha256[$2]}  $1" | sha256sum --check --status
}

# The text of Debian 12, or what was made here out of another release and noted beside it.
is_there() {
  is_right "$folder/$1.txt" "$1" && return 0
  [[ -f $folder/$1.sha256 ]] && (cd "$folder" && sha256sum --check --status "$1.sha256")
}

complete=yes
for name in legal tech prose; do
  is_there "$name" || complete=no
done
if [[ $complete == yes ]]; then
  echo "$folder"
  exit 0
fi

mkdir -p "$folder"
scratch=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

download() {
  (cd "$scratch" && apt-get download -qq -o APT::Sandbox::User=root "$1") > "$scratch/log" 2>&1
}

# Containers often leave out /usr/share/doc (dpkg's path-exclude), so the package itself is opened.
unpack() {
  command -v apt-get > /dev/null || die "apt-get is missing; $1 cannot be fetched"
  echo "fetch_texts: package $1" >&2
  if ! download "$1"; then
    [[ $(id -u) == 0 ]] || die "no package $1: run 'sudo apt-get update', then this again"
    apt-get update -qq > "$scratch/log" 2>&1 || true
    download "$1" || {
      cat "$scratch/log" >&2
      die "package $1 could not be downloaded"
    }
  fi
  dpkg-deb -x "$scratch/$1"_*.deb "$scratch/root"
}

# make NAME SOURCE-FILE
make() {
  if [[ $2 == *.html ]]; then
    python3 "$here/make_texts.py" "$2" > "$scratch/$1.txt"
  else
    cp "$2" "$scratch/$1.txt"
  fi
}

for name in legal tech prose; do
  is_there "$name" && continue
  made=no
  if [[ -f /${source[$name]} ]]; then
    make "$name" "/${source[$name]}"
    is_right "$scratch/$name.txt" "$name" && made=yes
  fi
  if [[ $made == no ]]; then
    unpack "${package[$name]}"
    [[ -f $scratch/root/${source[$name]} ]] ||
      die "package ${package[$name]} of this release has no ${source[$name]}"
    make "$name" "$scratch/root/${source[$name]}"
  fi
  if is_right "$scratch/$name.txt" "$name"; then
    rm -f "$folder/$name.sha256"
  else
    echo "fetch_texts: $name.txt differs from Debian 12's: figures will not compare" >&2
    (cd "$scratch" && sha256sum "$name.txt" > "$name.sha256")
    mv -f "$scratch/$name.sha256" "$folder/$name.sha256"
  fi
  chmod 644 "$scratch/$name.txt"
  mv -f "$scratch/$name.txt" "$folder/$name.txt"
done
echo "$folder"
