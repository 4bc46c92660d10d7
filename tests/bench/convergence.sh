#!/usr/bin/env bash
# Effect of precision and batch size on the loss, on the demo's corpus with a model that a laptop trains in minutes:
#   precision  FP32, bf16 at O1 and O2, fp16 at O2: the same seed and the same steps
#   batch      AdamW at the demo's batch; LAMB with one-cycle at 8 times that batch and as many tokens; AdamW there too
# Prints the validation loss along each run. One rank. Logs are in runs/convergence; an existing run is not repeated.
#   ./launch/demo.sh                                   once: creates runs/demo-data
#   tests/bench/convergence.sh [PROGRAM [STEPS]]       STEPS of the precision runs; the batch runs take twice as many tokens
#   THREADS=2 FLAGS="--model.layers 8" ...             threads of a run (1), further flags of all runs (without them
#                                                      over a quarter of an hour on one core)
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/cpu/gpttrain}
steps=${2:-300}
data=${DATA:-runs/demo-data}
[ -s "$data/gcide.idx" ] || { echo "convergence: no $data/gcide.idx; ./launch/demo.sh makes it" >&2; exit 2; }

# run NAME BATCH STEPS FLAG...
run() {
  local name=$1 batch=$2 count=$3
  shift 3
  [ -e "runs/convergence/$name/done" ] && return
  "$program" --config configs/demo.json --model.layers 4 --model.hidden 128 --model.heads 4 --device.kind cpu \
    --device.threads "${THREADS:-1}" \
    --data.train "$data/gcide" --data.tokenizer "$data/tok.model" --train.micro_batch 16 --train.global_batch "$batch" \
    --train.steps "$count" --train.eval_every $(((count + 5) / 6)) --train.eval_steps $((256 / batch)) --checkpoint.every 0 \
    --checkpoint.resume never --force --log.dir runs/convergence --log.name "$name" --log.tensorboard false --quiet \
    "$@" ${FLAGS:-} >"runs/convergence-$name.txt" 2>&1 || { tail -n 20 "runs/convergence-$name.txt" >&2; exit 1; }
  touch "runs/convergence/$name/done"
}

# losses NAME: validation losses in step order, of the last start of the run.
losses() {
  awk '/"type": "start"/ {n = 0} /"type": "eval"/ {match($0, /"loss": [0-9.]+/); x[++n] = substr($0, RSTART + 8, RLENGTH - 8)}
       END {for (i = 1; i <= n; ++i) printf "%s ", x[i]}' "runs/convergence/$1/log.jsonl"
}
skipped() { grep '"type": "step"' "runs/convergence/$1/log.jsonl" | tail -n 1 | sed 's/.*"skipped": \([0-9]*\).*/\1/'; }

row() {  # NAME BASE: the base's last loss is 100 %
  local mine base
  mine=$(losses "$1")
  base=$(losses "$2")
  printf '%-14s' "$1"
  for x in $mine; do printf ' %8.4f' "$x"; done
  awk -v a="${mine% }" -v b="${base% }" 'BEGIN {n = split(a, x, " "); m = split(b, y, " "); printf "  %+.2f %%", 100 * (x[n] / y[m] - 1)}'
  printf '  %s skipped\n' "$(skipped "$1")"
}

mkdir -p runs/convergence
for level in fp32 bf16-O1 bf16-O2 fp16-O2; do
  flags=(--precision.amp O0)
  [ $level = fp32 ] || flags=(--precision.amp "${level#*-}" --precision.dtype "${level%-*}")
  run $level 16 "$steps" "${flags[@]}"
done
tokens=$((2 * steps))  # steps with the small batch
large=$((tokens / 8))  # steps with the large batch, for as many tokens
rise=$((large * 2 / 5))
run adamw-16 16 "$tokens"
run lamb-128 128 "$large" --optim.type lamb --optim.lr 2e-2 --schedule.type one_cycle --schedule.min_lr 1e-3 \
  --schedule.first_steps $rise --schedule.second_steps $((large - rise)) --schedule.min_momentum 0.85 \
  --schedule.max_momentum 0.95
run adamw-128 128 "$large" --optim.lr 1.6e-2 --schedule.warmup_steps 5

echo "validation loss at sixths of the run ($steps steps of 16 sequences), against FP32 at the end"
for name in fp32 bf16-O1 bf16-O2 fp16-O2; do row $name fp32; done
echo "and for $tokens steps of 16 or $large of 128 sequences: LAMB with one-cycle, AdamW with 8 times its rate"
for name in adamw-16 lamb-128 adamw-128; do row $name adamw-16; done
