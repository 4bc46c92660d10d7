#!/usr/bin/env bash
# CUDA graphs on the emulated device: training with and without graphs gives bitwise identical losses, norms and
# checkpoints in any layout, and repeated work is replayed.
#   tests/cuda/graphs.sh BUILD/emulated/gpttrain
set -euo pipefail
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"

small="--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --train.micro_batch 1"
small+=" --train.global_batch 4 --train.steps 4 --launch.ranks threads --device.kind cuda"
small+=" --data.train mock --schedule.type constant --log.tensorboard false"

train() {  # NAME FLAG...
  local name=$1
  shift
  # shellcheck disable=SC2086
  GPTTRAIN_EMULATED_GRAPHS="$name.graphs" "$program" $small --log.name "$name" "$@" >"$name.txt" 2>&1 ||
    { cat "$name.txt"; fail "training $*"; }
}

# steps NAME: the results of every step and evaluation
steps() {
  grep -E '^\{"type": "(step|eval)"' "runs/$1/log.jsonl" | sed 's/"timers".*//' |
    grep -oE '"(type|step|loss|grad_norm|clip_coef|lr|loss_scale|skipped)": [^,}]*'
}

# graphs NAME: the run's final report on graphs
graphs() { grep -E 'graphs +[0-9]+ replayed' "$1.txt" | tail -1; }

same() {  # NAME OTHER
  [ "$(steps "$1")" = "$(steps "$2")" ] || { diff <(steps "$1") <(steps "$2"); fail "losses of $2 and $1 differ"; }
  [ "$(steps "$1" | grep -c '"type": "step"')" -ge 4 ] || fail "$1 logged too few steps"
  "$program" ckpt diff "runs/$1" "runs/$2" >diff.txt 2>&1 || { cat diff.txt; fail "$1 and $2 differ"; }
}

both() {  # NAME FLAG...: with and without, identical; most work replayed, no call deviating
  local name=$1
  shift
  train "$name-off" --device.graphs off "$@"
  train "$name-on" --device.graphs on "$@"
  same "$name-off" "$name-on"
  grep -q '^0 0 0 ' "$name-off.graphs" || fail "$name without graphs captured some: $(cat "$name-off.graphs")"
  graphs "$name-on" | grep -q ' 0 launched op by op' || fail "$name: $(graphs "$name-on")"
  read -r made launched pieces _ <"$name-on.graphs"
  [ "$made" -gt 0 ] && [ "$launched" -ge "$made" ] && [ "$pieces" -gt "$launched" ] || fail "$name: $made $launched $pieces"
  echo "bitwise identical with graphs: $* ($(graphs "$name-on" | sed 's/ *graphs *//'))"
}

both one --model.dropout 0.1 --model.attn_dropout 0.1 --train.eval_every 2 --parallel.recompute full
! full_size || both split --tp 2 --pp 2 --parallel.schedule zb-h1 --model.dropout 0.1
both zero --dp 2 --zero 3 --precision.amp O2 --precision.dtype fp16 --optim.type lamb
experts="--model.arch mixtral --model.ffn 24 --model.moe_experts 4 --model.moe_balance 0.1"
# shellcheck disable=SC2086
both experts $experts --train.eval_every 2
# shellcheck disable=SC2086
both exchange $experts --dp 2 --ep 2 --train.eval_every 2  # what ranks exchange differs: updates alone are replayed
grep -q 'with parallel.ep the sizes of what ranks' exchange-on.txt || fail "the start of the run with --ep names no reason"
! full_size || both stages --pp 2 --vpp 2 --parallel.schedule interleaved --model.layers 4 --dp 2 --zero 1 --train.loss_mean microbatch

# step NAME FLAG...: graph launches, individually queued work and host waits per step
step() {
  local name=$1
  shift
  rm -rf "runs/$name-short" "runs/$name-long"
  train "$name-short" --train.steps 4 "$@"
  train "$name-long" --train.steps 8 "$@"
  paste -d ' ' "$name-short.graphs" "$name-long.graphs" |
    awk '{printf "%g %g %g", ($7 - $2) / 4, ($9 - $4) / 4, ($10 - $5) / 4}'
}

read -r launched4 single4 waits4 <<<"$(step four --train.global_batch 4)"
read -r launched8 single8 waits8 <<<"$(step eight --train.global_batch 8)"
read -r none single waits <<<"$(step eager --train.global_batch 4 --device.graphs off)"
echo "a step of 4 microbatches: $launched4 graphs and $single4 single calls, without graphs $single calls; $waits4 waits of the host"
# One graph per microbatch and one for norms and clipping; the update is a single call, which needs no graph.
[ "$none" = 0 ] && [ "$launched4" = 5 ] && [ "$launched8" = 9 ] || fail "graphs a step: $launched4, $launched8 of 8, $none without"
[ "$((single8 - single4))" -le 24 ] || fail "a microbatch has $((single8 - single4)) / 4 calls beside its graph"
[ "$waits4" = "$waits8" ] && [ "$waits" = "$waits4" ] && [ "$waits4" -le 1 ] || fail "waits of the host: $waits4, $waits8 of 8, $waits eager"

# Graph memory is planned from the number of calls, and measured as the drop in free memory when the graphs are made.
read -r planned measured <<<"$(grep 'memory of rank 0' one-on.txt | grep -oE 'graphs [0-9.]+ [kM]B' |
  awk '{print $2 * ($3 == "MB" ? 1000 : 1)}' | paste -s -d ' ')"
echo "memory of graphs: planned $planned kB, measured $measured kB"
awk -v p="${planned:-0}" -v m="${measured:-0}" 'BEGIN {exit !(m > 0 && p >= m && p <= 2 * m)}' ||
  fail "graphs take $measured kB where $planned kB were planned"

# A resumed run captures its graphs again.
train resumed --device.graphs on --model.dropout 0.1 --model.attn_dropout 0.1 --train.eval_every 2 \
  --parallel.recompute full --train.steps 2 --checkpoint.every 2
train resumed --device.graphs auto --model.dropout 0.1 --model.attn_dropout 0.1 --train.eval_every 2 \
  --parallel.recompute full
same one-off resumed
echo "a run with graphs resumes bitwise identical"

# Where the device cannot capture, or the user synchronizes after every op, calls are queued directly, and the run
# reports why.
GPTTRAIN_EMULATED_CAPTURE=spoilt train spoilt --model.dropout 0.1 --model.attn_dropout 0.1 --train.eval_every 2 \
  --parallel.recompute full
same one-off spoilt
grep -q 'no graph could be made' spoilt.txt || fail "a device without graphs is not reported"
if full_size; then
  GPTTRAIN_EMULATED_CAPTURE=full train full --model.dropout 0.1 --model.attn_dropout 0.1 --train.eval_every 2 \
    --parallel.recompute full
  same one-off full
  grep -q 'no graph could be made: .*cudaErrorMemoryAllocation' full.txt || fail "a device without memory for graphs is not reported"
fi
GPTTRAIN_CUDA_SYNC=1 train waits --train.steps 2
grep -q 'GPTTRAIN_CUDA_SYNC=1 waits after every op' waits.txt || fail "waiting after every op is not reported"
echo "without captures the same calls run eagerly, and the run reports why"

GPTTRAIN_EMULATED_GUARD=1 train guarded --dp 2 --zero 1 --train.steps 3 --train.eval_every 1 --model.dropout 0.1
graphs guarded | grep -q ' 0 launched op by op' || fail "guarded: $(graphs guarded)"
echo "no host code touches device memory around graphs"

# NCCL collectives are inside graphs; messages between stages run between graphs.
fake=$(find "$(dirname "$program")/.." -maxdepth 2 -name 'libfake_nccl.so' | head -1)
[ -n "$fake" ] || fail "no libfake_nccl.so in the build folder"
nccl="--comm.backend nccl --comm.nccl_library $fake"
# shellcheck disable=SC2086
{
  both nccl --tp 2 --dp 2 --zero 2 $nccl
  grep -q 'collectives are captured in graphs' nccl-on.txt || fail "the start does not report that collectives are in graphs"
  if full_size; then
    train nccl-staged --tp 2 --dp 2 --zero 2 --comm.backend staged
    same nccl-off nccl-staged
  fi
  # One rank cannot capture: none of the ranks that share its collectives uses that graph, and nothing hangs.
  GPTTRAIN_EMULATED_CAPTURE=once train nccl-voted --tp 2 --dp 2 --zero 2 $nccl
  same nccl-off nccl-voted
  grep -q 'no graph could be made' nccl-voted.txt || fail "a failed capture on one rank is not reported"
  echo "a capture that fails on one rank is abandoned by all, bitwise identical ($(graphs nccl-voted | sed 's/ *graphs *//'))"
  # A failing call inside a graph: all ranks end, although communicators must outlive the graphs that contain their
  # calls.
  code=0
  FAKE_NCCL_FAIL_AT=800 timeout 25 "$program" $small --log.name nccl-torn --train.steps 8 --device.graphs on --tp 2 --dp 2 \
    --zero 2 $nccl >nccl-torn.txt 2>&1 || code=$?
  if [ $code -ne 70 ] || ! grep -q 'work on the device: NCCL .*: remote process exited or there was a network error' nccl-torn.txt; then
    cat nccl-torn.txt
    fail "a call in a graph failed: the run ended with $code, expected 70 and the call"
  fi
  echo "a failing call in a graph ends the run"
  both sliced --tp 2 --pp 2 --dp 2 --zero 1 $nccl
  ! full_size || both gathered --dp 4 --zero 3 --zero.prefetch 2 --precision.amp O2 --precision.dtype bf16 $nccl
  ! full_size || both each --dp 2 --zero 2 --zero.grad_reduce each --zero.bucket_bytes 1000 --train.eval_every 2 $nccl
  read -r inside single_inside _ <<<"$(step inside --tp 2 --train.global_batch 4 $nccl)"
  read -r outside single_outside _ <<<"$(GPTTRAIN_NCCL_GRAPHS=0 step outside --tp 2 --train.global_batch 4 $nccl)"
}
grep -q 'collectives are not captured in graphs: GPTTRAIN_NCCL_GRAPHS=0' outside-long.txt || fail "the start does not report why collectives are not captured"
echo "a step of 4 microbatches on 2 TP ranks: $inside graphs and $single_inside single calls of both;" \
  "with collectives beside graphs $outside and $single_outside"
[ "$inside" = 10 ] && [ "$outside" -gt "$inside" ] || fail "graphs a step with collectives inside: $inside, beside: $outside"

# (Emulated) cuDNN attention is captured like everything else.
! full_size || GPTTRAIN_EMULATED_CUDNN=1 both cudnn --precision.amp O2 --precision.dtype bf16

refused() {  # TEXT FLAG...
  local text=$1
  shift
  # shellcheck disable=SC2086
  "$program" $small --log.name refused "$@" >refused.txt 2>&1 && fail "not refused: $*"
  grep -q "$text" refused.txt || { cat refused.txt; fail "$* does not print: $text"; }
}
refused "a CPU has no graphs" --device.kind cpu --device.graphs on
refused "microbatches may differ in shape" --parallel.dynamic_shapes --device.graphs on
echo "graphs are refused where unsupported"
