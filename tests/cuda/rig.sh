# What the scripts of this folder begin with: `program`, their argument; a folder of their own, which goes with them; fail.
program=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Whether this is the full size (tests/nightly.sh) and not the one for every change.
full_size() { [ -n "${GPT_TEST_FULL:-}" ]; }
fail() { echo "FAILED: $*"; exit 1; }
