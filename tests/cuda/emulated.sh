#!/usr/bin/env bash
# The whole trainer on the emulated CUDA device (tests/cuda/emulation): layouts, mixed-precision levels and
# quantization against one rank on the CPU. Host code touches no device memory; checkpoints move between CPU and device.
# Very small models: the emulation takes a second for a GPU's microseconds.
#   tests/cuda/emulated.sh BUILD/emulated/gpttrain
set -euo pipefail
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"

small="--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --train.micro_batch 1"
small+=" --train.global_batch 4 --launch.ranks threads"
training="--data.train mock --schedule.type constant --log.tensorboard false"

verify() {
  # shellcheck disable=SC2086
  "$program" verify $small --device.kind cuda "$@" >verify.txt 2>&1 || { cat verify.txt; fail "verify $*"; }
  echo "equal to one rank of the CPU: $*"
}

# losses NAME: the loss of every step
losses() { grep '"type": "step"' "runs/$1/log.jsonl" | sed 's/.*"loss": \([0-9.e-]*\).*/\1/'; }

train() {  # NAME FLAG...
  local name=$1
  shift
  # shellcheck disable=SC2086
  "$program" $small $training --log.name "$name" "$@" >"$name.txt" 2>&1 || { cat "$name.txt"; fail "training $*"; }
}

grep -q "emulated device" < <("$program" --version) || fail "$program does not load the emulated library"
verify --tp 1
verify --tp 2 --pp 2 --dp 2 --zero 3
! full_size || verify --tp 2 --pp 2 --vpp 2 --parallel.schedule interleaved --model.layers 4 --steps 1
verify --dp 2 --device.graphs off  # kernels read the samples from where verify placed them
verify --dp 2 --zero 2 --model.dropout 0.1 --parallel.recompute full
! full_size || verify --tp 2 --pp 2 --dp 2 --zero 2 --comm.backend staged
verify --tp 2 --dp 2 --precision.amp O1 --precision.dtype bf16
verify --pp 2 --dp 2 --zero 1 --precision.amp O2 --precision.dtype fp16
! full_size || verify --tp 2 --precision.amp O3 --precision.dtype bf16
! full_size || verify --tp 2 --dp 2 --precision.tf32 true
verify --dp 2 --precision.qat int8
mixtral="--model.arch mixtral --model.ffn 24 --model.moe_experts 4 --model.moe_balance 0.1"
olmoe="--model.arch olmoe --model.ffn 16 --model.moe_experts 6 --model.moe_top_k 3"
# shellcheck disable=SC2086
{
  verify $mixtral --tp 2 --dp 2 --ep 2 --zero 2
  verify $olmoe --dp 2 --ep 2 --zero 1 --precision.amp O2 --precision.dtype bf16
  ! full_size || verify $mixtral --dp 4 --ep 2 --zero 3 --comm.backend staged
  ! full_size || verify $olmoe --tp 2 --dp 2 --parallel.recompute full --precision.amp O1 --precision.dtype fp16
}
verify --tp 2 --dp 2 --zero 3 --precision.amp O2 --precision.fp8 delayed --model.hidden 64 --model.heads 4 --model.seq 16
! full_size || verify --tp 2 --optim.type lamb
! full_size || verify --tp 2 --dp 2 --zero 3 --precision.grad_dtype bf16
verify --dp 2 --pp 2 --precision.amp O2 --precision.dtype fp16 --precision.grad_dtype bf16 --optim.type lamb
GPTTRAIN_EMULATED_GUARD=1 verify --dp 2 --zero 3 --precision.amp O2 --steps 1

train cpu --device.kind cpu --train.steps 6
train mixed --device.kind cpu --train.steps 2
train mixed --device.kind cuda --train.steps 4 --tp 2
train mixed --device.kind cpu --train.steps 6
paste <(losses cpu) <(losses mixed) |
  awk '{d = $1 / $2 - 1; if (d < 0) d = -d; if (d > 1e-5) bad = 1} END {exit bad || NR != 6}' ||
  { paste <(losses cpu) <(losses mixed); fail "losses of a run that moves between CPU and device differ"; }
echo "a run moves from the CPU to two ranks on the device and back with the losses of the CPU"

# NCCL replaced by a library for threads that reduces in rank order, as staged and direct groups do: bitwise identical.
fake=$(find "$(dirname "$program")/.." -maxdepth 2 -name 'libfake_nccl.so' | head -1)
[ -n "$fake" ] || fail "no libfake_nccl.so in the build folder"
layout="--device.kind cuda --train.steps 3 --train.eval_every 2 --tp 2 --pp 2 --dp 2 --zero 2"
# shellcheck disable=SC2086
train staged $layout --comm.backend staged
# shellcheck disable=SC2086
train nccl $layout --comm.backend nccl --comm.nccl_library "$fake"
train direct $layout
grep -q 'within the GPU shared by ranks as threads' direct.txt || fail "threads on one GPU do not share it by default"
[ "$(losses staged)" = "$(losses direct)" ] || { paste <(losses staged) <(losses direct); fail "losses of direct groups differ"; }
grep -q 'NCCL 2.32.3' nccl.txt || fail "the start of the run does not name NCCL"
[ "$(losses staged)" = "$(losses nccl)" ] || { paste <(losses staged) <(losses nccl); fail "losses of NCCL groups differ"; }
# shellcheck disable=SC2086
train sent $layout $mixtral --ep 2 --comm.backend nccl --comm.nccl_library "$fake"
# shellcheck disable=SC2086
train shared $layout $mixtral --ep 2
[ "$(losses sent)" = "$(losses shared)" ] || { paste <(losses sent) <(losses shared); fail "losses of experts with NCCL differ"; }
echo "training with NCCL and direct groups is bitwise identical to staged groups"

GPTTRAIN_EMULATED_GUARD=1 train guarded --device.kind cuda --dp 2 --zero 1 --train.steps 2 --train.eval_every 1
echo "no host code touches device memory in training, evaluation and saving"
