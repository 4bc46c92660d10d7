#!/usr/bin/env bash
# Stream races in whole steps on the emulated device. Every access of every kernel, copy and library is checked against
# the established order (tests/cuda/emulation/races.cpp). Covers the layouts, groups and precisions that use different
# streams. Also tests the race detector itself: with a barrier or wait ignored, it must report a race.
#   tests/cuda/races.sh BUILD/races/gpttrain
set -euo pipefail
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"
tests=$(dirname "$program")/test_kernels
fake=$(find "$(dirname "$program")/.." -maxdepth 2 -name 'libfake_nccl.so' | head -1)
[ -n "$fake" ] || fail "no libfake_nccl.so in the build folder"

train() {  # NAME FLAG...: returns its exit status; output in NAME.txt
  local name=$1
  shift
  "$program" --model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 64 --model.seq 16 --train.micro_batch 1 \
    --train.steps 3 --launch.ranks threads --data.train mock --log.tensorboard false --device.kind cuda \
    --log.name "$name" "$@" >"$name.txt" 2>&1
}
ordered() {
  train "$@" || { cat "$1.txt"; fail "$*"; }
  ! grep -q "a race at" "$1.txt" || { cat "$1.txt"; fail "$*"; }
}
nccl="--comm.backend nccl --comm.nccl_library $fake"
ordered eager --train.global_batch 4 --device.graphs off
! full_size || ordered graphs --train.global_batch 4 --amp O2
ordered direct --tp 2 --pp 2 --dp 2 --train.global_batch 8 --comm.backend direct
# shellcheck disable=SC2086
! full_size || ordered nccl --tp 2 --dp 2 --zero 2 --train.global_batch 4 --device.graphs off $nccl
# shellcheck disable=SC2086
ordered stages --pp 2 --dp 2 --zero 3 --train.global_batch 8 --amp O2 $nccl
! full_size || ordered staged --tp 2 --dp 2 --zero 1 --train.global_batch 8 --comm.backend staged
! full_size || ordered evaluation --train.global_batch 2 --data.valid mock --train.eval_every 1 --train.eval_steps 2 --device.graphs off
! full_size || ordered recompute --pp 2 --train.global_batch 4 --model.dropout 0.1 --parallel.recompute full --device.graphs off
ordered fp8 --amp O2 --precision.fp8 delayed --model.hidden 64 --train.global_batch 4 --device.graphs off
! full_size || ordered lamb --optim.type lamb --train.global_batch 4 --dp 2 --zero 2 --device.graphs off
echo "no race in steps of one rank and of eight, over direct, NCCL's and staged groups"

found() {  # NAME WHAT: run NAME ended with a race between two of WHAT
  grep -q "emulated kernel: a race at .*: .* $2" "$1.txt" || { cat "$1.txt"; fail "$1: no race of $2"; }
  [ "$(grep -c '^  first: \|^  second: ' "$1.txt")" = 2 ] || { cat "$1.txt"; fail "$1: two accesses are not named"; }
}
export GPTTRAIN_EMULATED_IGNORES=streams
! train waits --train.global_batch 4 --device.graphs off || fail "a stream without waits is not detected"
found waits "work items [0-9]* of stream [0-9]* and [0-9]* of stream [0-9]*"
# shellcheck disable=SC2086
! train collectives --dp 2 --train.global_batch 4 --device.graphs off $nccl || fail "NCCL's streams without waits are not detected"
found collectives "work items [0-9]* of stream [0-9]* and [0-9]* of stream [0-9]*"
export GPTTRAIN_EMULATED_IGNORES=blocks
! "$tests" "parity: column_sums*" >block.txt 2>&1 || fail "ignored barriers of a block are not detected"
found block "threads [0-9]* and [0-9]* of a block"
export GPTTRAIN_EMULATED_IGNORES=warps
! "$tests" "parity: embedding_grad*" >warp.txt 2>&1 || fail "ignored barriers of a warp are not detected"
found warp "threads [0-9]* and [0-9]* of a block"
grep -q "^  first:  kernels/cuda/.*:[0-9]" warp.txt || { cat warp.txt; fail "no source line"; }
echo "with a wait or a barrier ignored, the two accesses of a byte are named"
