#!/usr/bin/env bash
# Installs gpttrain's dependencies from Debian packages. Shared by launch/demo.sh and tests/run.sh; idempotent: if
# everything is installed it does nothing and needs no network. Needs root or sudo only to install.
#   launch/setup.sh [--tests]           dependencies of the program, or of the tests too
#   launch/setup.sh --fuzz              also clang with libFuzzer, for the preset fuzz
#   launch/setup.sh --only PACKAGE...   only these packages
# If a CUDA toolkit with cuDNN is present, also downloads the headers of cudnn-frontend (launch/cudnn_frontend.sh).
# Without them the CUDA backend uses its own attention kernels only.
set -euo pipefail
here=$(dirname "$0")

packages=(g++ cmake ninja-build ccache pkg-config git ca-certificates
          libopenmpi-dev openmpi-bin libhdf5-dev hdf5-tools libsentencepiece-dev libdnnl-dev
          libpcre2-dev libutf8proc-dev
          catch2 libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev zlib1g-dev patchelf)
only=no
case ${1:-} in
  --tests) packages+=(python3 python3-venv zsh fish groff-base) ;;
  --fuzz) packages+=(clang libclang-rt-dev) ;;
  --only) shift; packages=("$@"); only=yes ;;
esac

headers() {
  [ "$only" = yes ] || [ ! -x "$here/cudnn_frontend.sh" ] || "$here/cudnn_frontend.sh" || true
}
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || { headers; exit 0; }

echo "setup: installing ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: these packages need root or sudo: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq || echo "setup: apt-get update failed; trying with the package lists at hand" >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq \
  --no-install-recommends "${missing[@]}" >/dev/null
headers
