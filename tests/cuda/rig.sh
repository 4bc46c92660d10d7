# Sourced by the scripts of this folder: `program` (their argument), a temporary working folder, fail.
program=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Whether to run at full size (tests/nightly.sh) rather than the size for every change.
full_size() { [ -n "${GPT_TEST_FULL:-}" ]; }
fail() { echo "FAILED: $*"; exit 1; }
