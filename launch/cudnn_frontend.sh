#!/usr/bin/env bash
# Downloads the headers of NVIDIA's cudnn-frontend (MIT licence), with which the CUDA backend builds cuDNN attention
# graphs, to build/deps/cudnn-frontend: include/ and LICENSE.txt from one PyPI wheel, pinned by version and SHA-256.
# Does nothing if they are present, or if there is no cuDNN (cudnn.h of a CUDA toolkit or of the system). Called by
# launch/setup.sh or by hand; reconfigure afterwards. Without them the backend uses its own attention kernels only.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.23.0
sha256=7bdae232a3071501012611fab14aae34dd16983205e56d3c1641317910fdd385
folder=build/deps/cudnn-frontend

[ -e "$folder/$version" ] && exit 0
found=no
for include in "${CUDAToolkit_ROOT:-/nonexistent}"/include "${CUDA_HOME:-/nonexistent}"/include \
  /usr/local/cuda/include /usr/include /usr/include/x86_64-linux-gnu; do
  [ -e "$include/cudnn_graph.h" ] && found=yes
done
[ $found = yes ] || exit 0

./launch/setup.sh --only python3 python3-venv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=/usr/bin/python3
[ -x "$python" ] || python=python3
"$python" -m venv "$work/venv"
echo "nvidia-cudnn-frontend==$version --hash=sha256:$sha256" >"$work/wanted.txt"
# Wheel of one fixed Python version: all versions contain the same headers, but have different checksums.
"$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
  --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 \
  --dest "$work" -r "$work/wanted.txt" || {
  echo "cudnn-frontend: cannot download the wheel nvidia-cudnn-frontend $version; GPU attention uses our own kernels" >&2
  exit 1
}
"$python" -m zipfile -e "$work"/*.whl "$work/wheel"
rm -rf "$folder"
mkdir -p "$folder"
cp -r "$work/wheel/include" "$folder/"
cp "$work"/wheel/nvidia_cudnn_frontend-*.dist-info/licenses/LICENSE* "$folder/LICENSE.txt" 2>/dev/null ||
  cp "$work"/wheel/nvidia_cudnn_frontend-*.dist-info/LICENSE* "$folder/LICENSE.txt"
touch "$folder/$version"
echo "cudnn-frontend: $version is in $folder"
