#!/usr/bin/env bash
# The portable bundle as packed by launch/packages.sh: unpacked, moved to another path, and run there without LD_LIBRARY_PATH and
# without this machine's tools in PATH. Every library of every file in it resolves to the bundle or to a list of base
# system libraries; nothing refers to the build folder.
#   tests/launch/bundle.sh PACKAGES        folder of the archive
set -euo pipefail
packages=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*"; exit 1; }

mkdir unpacked "a place with spaces"
tar -xzf "$packages"/gpttrain-*.tar.gz -C unpacked
mv unpacked/gpttrain-* "a place with spaces/moved"
there="$work/a place with spaces/moved"

allowed='^(linux-vdso|ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|libnsl)\.so'
cuda='^(libcublas|libcublasLt|libcudart)\.so'
count=0
while IFS= read -r -d '' file; do
  head -c 4 "$file" | grep -q ELF || continue
  count=$((count + 1))
  readelf -d "$file" | grep -E 'R(UN)?PATH' | grep -o '\[.*\]' | tr -d '[]' | tr : '\n' | while read -r path; do
    [[ $path == '$ORIGIN'* || $path == /usr/local/cuda/* ]] || fail "$file searches libraries in $path"
  done
  while read -r name path; do
    [[ $path == "$there"/* ]] && continue
    [[ $name =~ $allowed ]] && continue
    [[ $file == */libgpttrain_cuda.so && $name =~ $cuda ]] && continue
    fail "$file resolves $name to $path"
  done < <(env -i ldd "$file" | sed -nE 's/^\s*(\S+) => (not found|.*) \(0x.*$/\1 \2/p; s/^\s*(\S+) => not found$/\1 missing/p')
done < <(find "$there" -type f -print0)
[ "$count" -gt 50 ] || fail "only $count programs and libraries in the bundle"
echo "$count programs and libraries resolve all but glibc inside the bundle"

ls "$there"/licenses/*.txt >/dev/null || fail "no licences"
[ -x "$there/launch/demo.sh" ] || fail "no launch/demo.sh"
floor=$(sed -n 's/^glibc: \([0-9.]*\) or later$/\1/p' "$there/share/gpttrain/bundle.txt")
[ -n "$floor" ] || fail "bundle.txt does not name the glibc it needs"

# Isolated from this machine: no MPI in PATH, and settings of another MPI in the environment.
mkdir home
run() { env -i HOME="$work/home" PATH=/nowhere OPAL_PREFIX=/nowhere "$there/bin/gpttrain" "$@"; }
run --version >version.txt || fail "--version"
grep -q "Open MPI" version.txt || { cat version.txt; fail "--version does not name its MPI"; }
[ ! -e "$there/bin/libgpttrain_cuda.so" ] || ! grep -qi "libgpttrain_cuda.so is not at" version.txt ||
  { cat version.txt; fail "the backend in the bundle is not found"; }
model="--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --train.micro_batch 1"
model+=" --train.global_batch 4 --train.steps 3 --data.train mock --log.tensorboard false --device.kind cpu"
losses() { grep '"type": "step"' "runs/$1/log.jsonl" | sed 's/.*"loss": \([0-9.e-]*\).*/\1/'; }
for ranks in threads processes; do
  # shellcheck disable=SC2086
  run $model --dp 2 --launch.ranks $ranks --log.name $ranks >$ranks.txt 2>&1 || { cat $ranks.txt; fail "2 ranks as $ranks"; }
  [ "$(losses $ranks | wc -l)" = 3 ] || { cat $ranks.txt; fail "2 ranks as $ranks did not make 3 steps"; }
done
[ "$(losses threads)" = "$(losses processes)" ] || fail "losses of threads and processes differ"
echo "2 ranks as threads and as processes through the bundled mpirun: equal losses (glibc $floor or later is needed)"
