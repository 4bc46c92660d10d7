#!/usr/bin/env bash
# The test command: installs what tests need, builds, runs every test, ends with ctest's summary.
#   tests/run.sh                 everything, preset cpu (the CUDA backend too where a toolkit is found)
#   tests/run.sh -R checkpoint   further arguments go to ctest
#   GPT_PRESET=asan tests/run.sh another preset
#   GPT_TEST_WITHOUT_READERS=1   continue where h5py, tensorboard, sentencepiece or transformers cannot be installed
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${GPT_PRESET:-cpu}
./launch/setup.sh --tests
if ! ./tests/readers/setup.sh && [ -z "${GPT_TEST_WITHOUT_READERS:-}" ]; then
  echo "tests: third-party readers could not be installed (see above), so nothing would test that they read what we" \
    "write. GPT_TEST_WITHOUT_READERS=1 goes on; their tests are then skipped"
  exit 1
fi

started=$SECONDS
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" -j "$(nproc)"
echo "tests: built in $((SECONDS - started)) s"
rc=0
ctest --preset "$preset" -j 4 "$@" || rc=$?  # some wait most of their time
# Lists skipped tests with reasons: ctest only names the tests, their output has the reason.
awk '/^[0-9]+\/[0-9]+ Test(ing)?: / {name = $0; sub(/^[0-9]+\/[0-9]+ Test(ing)?: /, "", name)}
  /^SKIPPED( IN PART)?: / {if (!n++) print "tests: did not run here, or not whole:"; print "  " name "\n    " $0}
  END {if (!n) print "tests: everything ran"}' "build/$preset/Testing/Temporary/LastTest.log"
exit $rc
