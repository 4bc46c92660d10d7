#!/usr/bin/env bash
# The kernel rules (kernels/cuda/exceptions.txt), checked against the PTX of a build: each rule, broken in a copy, fails
# the check with the kernel's name and keeps the record from being written.
#   tests/cuda/resources.sh KERNELS/CUDA/resources.sh PTX...
set -euo pipefail
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"
shift

for ptx in "$@"; do  # two sources suffice: vector kernels, and kernels with exceptions
  case $ptx in */dropout.ptx | */quant.ptx) cp "$ptx" . ;; esac
done
grep -E '^(#|dropout |quant )' "$(dirname "$program")/exceptions.txt" >exceptions.txt
"$program" record resources.txt 0 dropout.ptx quant.ptx
"$program" check resources.txt 0 dropout.ptx quant.ptx || fail "a fresh record is refused"
mkdir whole && cp -- *.ptx *.txt whole

refuses() {  # PATTERN...: expected output for the files as they are; then restores them
  local action pattern
  for action in check record; do
    if "$program" "$action" resources.txt 0 dropout.ptx quant.ptx >output.txt 2>&1; then fail "$action accepts: $*"; fi
    for pattern in "$@"; do
      grep -qE "$pattern" output.txt || { cat output.txt; fail "$action does not print: $pattern"; }
    done
    cmp -s resources.txt whole/resources.txt || fail "$action wrote a record: $*"
  done
  cp whole/* .
  echo "refused: $*"
}

sed -i -E 's/(ld\.global[a-z.]*)\.v4\./\1./' dropout.ptx
refuses '^dropout.cu: dropout_kernel<4,float> loads [48] bytes at once' '<8,__half> loads' '<8,__nv_bfloat16> loads'
sed -i -E 's/(st\.global[a-z.]*)\.v4\./\1./' dropout.ptx
refuses '^dropout.cu: dropout_kernel<4,float> stores 4 bytes at once' '<8,__half> stores'
sed -i '/^\tret;/i\	ld.local.u32 %r1, [%rd1];' dropout.ptx
refuses '^dropout.cu: dropout_kernel<4,float> has [0-9]+ accesses to local memory'
sed -i '/^\tret;/i\	add.f64 %fd1, %fd1, %fd1;' quant.ptx
refuses '^quant.cu: max_abs_kernel<float,4> computes in double precision'
sed -i '/^quant fake_quant/d' exceptions.txt
refuses '^quant.cu: fake_quant_kernel<float> loads 4 bytes' '^quant.cu: fake_quant_grad_kernel<__half> stores 2 bytes'
sed -i 's/^quant max_abs_kernel<.\*> stores/quant max_abs_kernel<.*> stores,double/' exceptions.txt
refuses '^exceptions.txt: no kernel needs double of quant max_abs_kernel'
echo 'quant gone_kernel stores for no reason' >>exceptions.txt
refuses '^exceptions.txt: no kernel needs stores of quant gone_kernel'
echo 'quant max_abs_kernel<.*> stores' >>exceptions.txt
refuses '^exceptions.txt: not FILE KERNEL RIGHTS REASON'
