#!/usr/bin/env bash
# format.sh SOURCE_DIR [--fix]: every C++ and CUDA file conforms to .clang-format (version 14). --fix formats them.
set -euo pipefail
cd "$1"
for formatter in build/readers/bin/clang-format clang-format-14 clang-format; do
  "$formatter" --version 2>/dev/null | grep -q 'version 14\.' && break
  formatter=
done
[ -n "$formatter" ] || { echo "SKIPPED: no clang-format 14 (tests/readers/setup.sh installs it)"; exit 77; }
mode=(--dry-run -Werror -ferror-limit=1)
[ "${2:-}" = --fix ] && mode=(-i)
find autograd checkpoint data docs kernels launch model optim parallel tests \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 -n 50 -P "$(nproc)" "$formatter" "${mode[@]}" ||
  { echo "format these files with: tests/house/format.sh . --fix"; exit 1; }
