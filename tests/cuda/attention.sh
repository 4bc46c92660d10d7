#!/usr/bin/env bash
# Attention selection and its log messages, on the emulated device with cuDNN (GPTTRAIN_EMULATED_CUDNN=1,
# tests/cuda/emulation/cudnn.cpp) and without.
#   tests/cuda/attention.sh BUILD/emulated/gpttrain
set -euo pipefail
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"

small="--model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --train.micro_batch 1"
small+=" --train.global_batch 2 --launch.ranks threads"
start() {  # NAME FLAG...
  local name=$1
  shift
  # shellcheck disable=SC2086
  "$program" $small --train.steps 2 --data.train mock --log.tensorboard false --device.kind cuda --log.name "$name" "$@" \
    >"$name.txt" 2>&1
}
train() { start "$@" || { cat "$1.txt"; fail "training $*"; }; }
prints() { grep -qF "$2" "$1.txt" || { cat "$1.txt"; fail "$1 does not print: $2"; }; }
refused() {  # NAME WORDS FLAG...
  local name=$1 words=$2 code=0
  shift 2
  start "$name" "$@" || code=$?
  [ $code -eq 2 ] || { cat "$name.txt"; fail "$name ended with $code, expected 2"; }
  prints "$name" "$words"
}
losses() { grep '"type": "step"' "runs/$1/log.jsonl" | sed 's/.*"loss": \([0-9.e-]*\).*/\1/'; }
half="--precision.amp O2 --precision.dtype bf16"

# shellcheck disable=SC2086
{
  train without $half
  prints without "attention: our own kernels; there is no cuDNN on the emulated device"
  refused demanded "device.attention: cudnn was requested, but there is no cuDNN on the emulated device" $half --device.attention cudnn
  refused on_cpu "device.attention: cudnn was requested, but this run uses the CPU" --device.kind cpu --device.attention cudnn
  echo "without cuDNN: our own kernels, and an explicit request for it is refused"

  export GPTTRAIN_EMULATED_CUDNN=1
  train with $half
  prints with "attention forward: emulated cuDNN, workspace 1 MiB for 1 x 8 tokens, 2 heads of 8, bf16"
  prints with "attention backward: emulated cuDNN, deterministic (train.deterministic false may be faster)"
  prints with "workspaces 268 MB"
  train any_order $half --device.attention cudnn --train.deterministic false
  prints any_order "attention backward: emulated cuDNN, sums in any order (train.deterministic false)"
  train own $half --device.attention own
  prints own "attention: our own kernels (device.attention own)"
  ! grep -q "emulated cuDNN" own.txt || fail "own kernels were requested and cuDNN ran"
  paste <(losses with) <(losses own) | awk '{d = $1 / $2 - 1; if (d < 0) d = -d; if (d > 1e-3) bad = 1} END {exit bad || NR != 2}' ||
    { paste <(losses with) <(losses own); fail "losses of cuDNN and of our own kernels differ"; }
  echo "with cuDNN: cuDNN, or our own kernels by device.attention, with equal losses"

  train full
  prints full "attention: our own kernels; tensors are f32, and cuDNN's attention takes bf16 and fp16"
  refused full_demanded "tensors are f32, and cuDNN's attention takes bf16 and fp16" --device.attention cudnn
  train dropped $half --model.attn_dropout 0.1
  prints dropped "attention: our own kernels; attention dropout is a function of module and sample here"
  train capped $half --model.attn_softcap 5
  prints capped "attention: our own kernels; attention scores have a soft cap"
  train window $half --model.window 3 --device.attention cudnn
  prints window "attention forward: emulated cuDNN, workspace 1 MiB for 1 x 8 tokens, 2 heads of 8, window 3, bf16"
  train own_window $half --model.window 3 --device.attention own
  paste <(losses window) <(losses own_window) | awk '{d = $1 / $2 - 1; if (d < 0) d = -d; if (d > 1e-3) bad = 1} END {exit bad || NR != 2}' ||
    { paste <(losses window) <(losses own_window); fail "with a window losses of cuDNN and of our own kernels differ"; }
  train wide $half --model.hidden 136 --model.heads 1
  prints wide "attention forward: emulated cuDNN"
  prints wide "attention backward: our own kernels for 1 x 8 tokens, 1 heads of 136, bf16; hidden_dim above 128"
  refused wide_demanded "it does not support this attention backward (1 x 8 tokens, 1 heads of 136, bf16): hidden_dim above 128" \
    $half --model.hidden 136 --model.heads 1 --device.attention cudnn
  echo "shapes that cuDNN does not support run on our own kernels, forward and backward separately, or are refused"

  train askew $half --model.seq 7
  prints askew "attention forward: emulated cuDNN"
  prints askew "attention backward: our own kernels; batch x heads x seq is not a multiple of 4, so cuDNN's workspace would not be aligned"
  refused askew_demanded "it does not support this attention backward (1 x 7 tokens, 2 heads of 8, bf16): batch x heads x seq" \
    $half --model.seq 7 --device.attention cudnn
  export GPTTRAIN_EMULATED_CUDNN_RUNS=0
  train failing $half
  prints failing "attention forward: our own kernels for 1 x 8 tokens, 2 heads of 8, bf16; cuDNN has a plan and fails to run it: CUDNN_STATUS_EXECUTION_FAILED"
  prints failing "attention backward: our own kernels for 1 x 8 tokens"
  ! grep -q "emulated cuDNN" failing.txt || fail "cuDNN failed and is reported as in use"
  cmp <(losses failing) <(losses own) || fail "after a failure of cuDNN, the losses are not those of our own kernels"
  refused failing_demanded "cuDNN has a plan and fails to run it" $half --device.attention cudnn
  code=0
  GPTTRAIN_EMULATED_CUDNN_RUNS=1 start broken $half || code=$?
  [ $code -ne 0 ] || fail "a later failure of a working plan is ignored"
  prints broken "running cuDNN's attention forward: CUDNN_STATUS_EXECUTION_FAILED"
  unset GPTTRAIN_EMULATED_CUDNN_RUNS
  echo "an initial failure of cuDNN falls back to our own kernels; a later one ends the run"

  "$program" verify $small --device.kind cuda --tp 2 --pp 2 --model.layers 2 --dp 2 --zero 1 --train.global_batch 4 \
    $half --device.attention cudnn --steps 1 >verify.txt 2>&1 || { cat verify.txt; fail "verify with cuDNN"; }
  echo "layouts with cuDNN are equal to one rank of the CPU"
}
