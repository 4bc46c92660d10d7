#!/usr/bin/env bash
# usage: headers_alone.sh SOURCE_DIR COMPILER — every header of the house compiles as the only include of a file.
set -euo pipefail
cd "$1"
compiler=$2
find autograd checkpoint data kernels launch model optim parallel tests -name '*.h' ! -path 'kernels/cuda/*' ! -path 'kernels/cpu/*' -print0 |
  xargs -0 -P "$(nproc)" -I{} sh -c '"$0" -std=c++20 -fsyntax-only -w -I. -x c++ -include "$1" /dev/null || { echo "does not compile alone: $1"; exit 1; }' "$compiler" {}
