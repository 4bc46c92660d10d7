#!/usr/bin/env bash
# The test command: installs what tests need, builds, runs every test, ends with ctest's summary.
#   tests/run.sh                 everything, preset cpu (the CUDA backend too where a toolkit is found)
#   tests/run.sh -R checkpoint   further arguments go to ctest
#   GPT_PRESET=asan tests/run.sh another preset
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${GPT_PRESET:-cpu}
./launch/setup.sh --tests
./launch/setup.sh --only python3-torch || echo "tests: no python3-torch"
./tests/readers/setup.sh || echo "tests: not all Python readers could be installed; their tests will say SKIPPED"

started=$SECONDS
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" -j "$(nproc)"
echo "tests: built in $((SECONDS - started)) s"
ctest --preset "$preset" -j 2 "$@"
