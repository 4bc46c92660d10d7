#!/usr/bin/env bash
# usage: headers_alone.sh SOURCE_DIR COMPILER — every header of the house compiles as the only include of a file.
set -euo pipefail
cd "$1"
compiler=$2
flags="-std=c++20 -fsyntax-only -w -I. $(mpicc --showme:compile) -I/usr/include/hdf5/serial"
find autograd checkpoint data kernels launch model optim parallel -name '*.h' ! -path 'kernels/cuda/*' ! -path 'kernels/cpu/*' -print0 |
  xargs -0 -P "$(nproc)" -I{} sh -c '"$0" $2 -x c++ -include "$1" /dev/null || { echo "does not compile alone: $1"; exit 1; }' "$compiler" {} "$flags"
