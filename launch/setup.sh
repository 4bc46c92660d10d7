#!/usr/bin/env bash
# Installs what gpttrain needs from Debian's packages. Shared by launch/demo.sh and tests/run.sh; safe to run again:
# when everything is there it does nothing and needs no network. Needs root or sudo only when something is missing.
#   launch/setup.sh [--tests]           what the program, or the tests too, cannot do without
#   launch/setup.sh --fuzz              and clang with libFuzzer, for the preset fuzz
#   launch/setup.sh --only PACKAGE...   these
# Where a CUDA toolkit with cuDNN is, the headers of cudnn-frontend come too (launch/cudnn_frontend.sh); without them the CUDA
# backend has its own attention alone.
set -euo pipefail
here=$(dirname "$0")

packages=(g++ cmake ninja-build ccache pkg-config git ca-certificates
          libopenmpi-dev openmpi-bin libhdf5-dev hdf5-tools libsentencepiece-dev libdnnl-dev
          catch2 libcli11-dev nlohmann-json3-dev libfmt-dev libxxhash-dev zlib1g-dev patchelf)
only=no
case ${1:-} in
  --tests) packages+=(python3 python3-venv) ;;
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
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
headers
