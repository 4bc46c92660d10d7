#!/usr/bin/env bash
# Makes PyPI's PyTorch load without CUDA: without_cuda.sh VENV. PyPI has no CPU build for x86, and the CUDA libraries that the
# wheel requires are 2.5 GB that no test here uses. One library takes their names; each function in it returns
# cudaErrorNoDevice, so that torch.cuda.is_available() is false. The GPU code inside the wheel is released from the disk.
set -euo pipefail
cd "$1"/lib/python3*/site-packages/torch/lib
[ ! -e libcuda_absent.so ] || exit 0
names=$(readelf -d *.so | sed -nE 's/.*\(NEEDED\).*\[(lib(cu|nccl|nv)[^]]*)\].*/\1/p' | sort -u)
[ -n "$names" ] || exit 0  # a CPU build
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
nm -D --undefined-only *.so | awk '$1 == "U" && $2 ~ /^(__cuda|cu|nccl|nvrtc|nvshmem)/ {print $2}' | sort -u >"$tmp/needed"
nm -D --defined-only *.so | awk 'NF == 3 {sub(/@.*/, "", $3); print $3}' | sort -u >"$tmp/defined"
# function and version of each: "cublasCreate_v2 libcublas.so.12"
awk -F@ 'NR == FNR {here[$1] = 1; next} !here[$1] {print $1, $2 ? $2 : "unversioned"}' "$tmp/defined" "$tmp/needed" >"$tmp/absent"
awk '$1 ~ /GetError(String|Name)$/ {print "const char* " $1 "(void) { return \"no device\"; }"; next}
  {print "int " $1 "(void) { return 100; }"}' "$tmp/absent" >"$tmp/absent.c"
awk '{of[$2] = of[$2] $1 "; "} END {for (v in of) print v " { " of[v] "};"}' "$tmp/absent" >"$tmp/versions"
gcc -shared -fPIC -w -Wl,--version-script="$tmp/versions" -o "$tmp/libcuda_absent.so" "$tmp/absent.c"
for name in $names; do
  [ -e "$name" ] || ln -s libcuda_absent.so "$name"
done
for lib in libtorch_cuda.so libtorch_cuda_linalg.so; do
  read -r offset size < <(readelf -SW $lib | sed -nE 's/.* \.nv_fatbin +[A-Z]+ +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) .*/0x\1 0x\2/p') &&
    fallocate --punch-hole -o $((offset)) -l $((size)) $lib || true  # not every file system can
done
# transformers 5 checks whether a CUDA graph is being captured, which without a device is an error instead of false
sed -i 's/return \(_cuda_isCurrentStreamCapturing()\)/return torch.cuda.is_available() and \1/' ../cuda/graphs.py
mv "$tmp/libcuda_absent.so" .
