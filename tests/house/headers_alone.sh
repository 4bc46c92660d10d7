#!/usr/bin/env bash
# headers_alone.sh SOURCE_DIR COMPILER: every header compiles as the only include of a file. Headers that a source
# includes first are covered by the build; the others are compiled here.
set -euo pipefail
cd "$1"
compiler=$2
flags="-std=c++20 -fsyntax-only -w -I. $(mpicc --showme:compile) -I/usr/include/hdf5/serial"
folders="autograd checkpoint data kernels launch model optim parallel"
# shellcheck disable=SC2086
first_includes=$(find $folders -name '*.cpp' ! -path 'kernels/cuda/*' -exec awk '/^#include/ {if ($2 ~ /^"/) print $2; nextfile}' {} + | tr -d '"')
# shellcheck disable=SC2086
find $folders -name '*.h' ! -path 'kernels/cuda/*' ! -path 'kernels/cpu/*' | grep -vxFf <(echo "$first_includes") | tr '\n' '\0' |
  xargs -0 -P "$(nproc)" -I{} sh -c '"$0" $2 -x c++ -include "$1" /dev/null || { echo "does not compile alone: $1"; exit 1; }' "$compiler" {} "$flags"
