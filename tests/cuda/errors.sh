#!/usr/bin/env bash
# A device that fails in the middle of the work (injected in the emulation), in any subcommand and layout, at any time.
# The run ends by itself, reports the call and the error, and exits with the code of that kind of error.
#   tests/cuda/errors.sh BUILD/emulated/gpttrain
set -euo pipefail
ops=$(dirname "$(realpath "$0")")/../../kernels/ops.h
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"

small="--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --train.micro_batch 1"
small+=" --train.global_batch 4 --device.kind cuda --data.train mock --schedule.type constant --log.tensorboard false"
training="--train.steps 4 --train.eval_every 2 --checkpoint.every 2 --log.name broken"
illegal=700 contained=226 uncorrectable=214 unavailable=46

# breaks CODE NAME KERNEL:ERROR ARGUMENT...: the program's output is in output.txt
breaks() {
  local code=$1 name=$2 when=$3 got=0
  shift 3
  rm -rf runs/broken
  GPTTRAIN_EMULATED_FAILS=$when "$program" "$@" >output.txt 2>&1 || got=$?
  [ "$got" = "$code" ] || { cat output.txt; fail "exit code $got, expected $code, at kernel $when: $*"; }
  grep -qE "^gpttrain: (rank .*: )?[a-z_0-9' ]+: CUDA error $name: " output.txt || { cat output.txt; fail "no $name: $*"; }
  [ "$(grep -c 'CUDA error' output.txt)" = 1 ] || { cat output.txt; fail "more than one error is printed: $*"; }
  ! grep -qE 'uncaught|terminate|signal' output.txt || { cat output.txt; fail "the process died of something else: $*"; }
}

fake=$(find "$(dirname "$program")/.." -maxdepth 2 -name 'libfake_nccl.so' | head -1)
[ -n "$fake" ] || fail "no libfake_nccl.so in the build folder"
four="--tp 2 --dp 2 --zero 2 --launch.ranks threads"

# Kernels of startup, of recorded and replayed steps, of evaluation, of saving.
moments="2 150 420"
! full_size || moments="2 40 150 300 420 700"
for kernel in $moments; do
  # shellcheck disable=SC2086
  {
    breaks 70 cudaErrorIllegalAddress $kernel:$illegal $small $training
    breaks 16 cudaErrorContained $kernel:$contained $small $training --device.graphs off
    breaks 70 cudaErrorIllegalAddress $kernel:$illegal $small $training $four
    breaks 16 cudaErrorContained $kernel:$contained $small $training $four --comm.backend nccl --comm.nccl_library "$fake"
    breaks 16 cudaErrorECCUncorrectable $kernel:$uncorrectable bench $small --tp 2 --launch.ranks threads --warmup 1 --steps 3
  }
done
# shellcheck disable=SC2086
breaks 2 cudaErrorDevicesUnavailable 2:$unavailable $small $training
grep -q 'Another process may hold the GPU' output.txt || { cat output.txt; fail "a GPU held by another process is not reported"; }
echo "training and benchmarks end with the device's error"

# shellcheck disable=SC2086
"$program" $small --log.name whole --train.steps 2 >whole.txt 2>&1 || { cat whole.txt; fail "training"; }
moments=40
! full_size || moments="2 40 90"
for kernel in $moments; do
  # shellcheck disable=SC2086
  {
    breaks 16 cudaErrorContained $kernel:$contained eval --load runs/whole --data.train mock --steps 1000 --device.kind cuda
    breaks 16 cudaErrorContained $kernel:$contained eval --load runs/whole --data.train mock --steps 1000 --device.kind cuda --dp 2 --launch.ranks threads
    breaks 70 cudaErrorIllegalAddress $kernel:$illegal verify ${small/--data.train mock/} --tp 2 --launch.ranks threads
  }
done
echo "evaluation and comparison too"

# With a synchronization after every op the error names the op; without, the message recommends it.
# shellcheck disable=SC2086
breaks 70 cudaErrorIllegalAddress 300:$illegal $small $training
grep -q 'with GPTTRAIN_CUDA_SYNC=1 the error names it' output.txt || { cat output.txt; fail "GPTTRAIN_CUDA_SYNC is not recommended"; }
for kernel in 150 300; do
  # shellcheck disable=SC2086
  GPTTRAIN_CUDA_SYNC=1 breaks 70 cudaErrorIllegalAddress $kernel:$illegal $small $training
  op=$(grep -oE '^gpttrain: [a-z_0-9]+:' output.txt | tr -d ':' | cut -d ' ' -f 2)
  grep -qE "^  X\($op, " "$ops" || { cat output.txt; fail "'$op' is not an op"; }
  echo "kernel $kernel is of $op"
done
