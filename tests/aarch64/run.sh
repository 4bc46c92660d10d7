#!/usr/bin/env bash
# The product for aarch64: builds it with Debian's cross compiler, runs the kernel tests and a short training run under
# an emulator. Needs root or sudo to install the compiler and the emulator; libraries for aarch64 go to the build folder.
#   tests/aarch64/run.sh [FOLDER]   default build/aarch64
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-build/aarch64}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
root=$folder/root
launch/setup.sh
launch/setup.sh --only g++-aarch64-linux-gnu qemu-user-static catch2 libcli11-dev nlohmann-json3-dev

# Debian's packages for aarch64 from the archives that this machine uses, without touching its own list of packages. The
# C library's headers are the cross compiler's.
libraries() {
  local apt=$folder/apt package
  rm -rf "$apt" "$root"
  mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$root"
  : >"$apt/status"
  local options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$apt/state"
                 -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o Debug::NoLocking=1)
  apt-get "${options[@]}" update -qq
  apt-get "${options[@]}" install --download-only -y -qq --no-install-recommends libc6 libstdc++6 libopenmpi-dev \
    libhdf5-dev libsentencepiece-dev libdnnl-dev libpcre2-dev libutf8proc-dev libfmt-dev libxxhash-dev zlib1g-dev
  for package in "$apt"/cache/archives/*.deb; do
    case ${package##*/} in
      libc6-dev_* | linux-libc-dev_* | libstdc++-*-dev_* | libgcc-*-dev_* | libcrypt-dev_*) ;;
      *) dpkg-deb -x "$package" "$root" ;;
    esac
  done
  touch "$root/complete"
}
[ -e "$root/complete" ] || libraries

cmake -S . -B "$folder" -G Ninja -DCMAKE_TOOLCHAIN_FILE=tests/aarch64/toolchain.cmake -DGPT_AARCH64_ROOT="$root" \
  -DGPT_CUDA=OFF >"$folder/configure.log" || { cat "$folder/configure.log"; exit 1; }
cmake --build "$folder" --target gpttrain test_kernels test_optim -j "$(nproc)"

emulated() { qemu-aarch64-static -L "$root" "$@"; }
for suite in kernels optim; do
  echo "aarch64: test_$suite"
  emulated "$folder/test_$suite"
done
run=$folder/run
rm -rf "$run"
mkdir "$run"
train() {
  (cd "$run" && emulated "$folder/gpttrain" train --config "$OLDPWD/configs/tiny.json" --data.train mock \
    --device.kind cpu --device.threads 1 --checkpoint.every 10 "$@")
}
train --train.steps 20 --schedule.total_steps 30
train --train.steps 30 --schedule.total_steps 30
echo "30 steps trained on aarch64"
