#!/usr/bin/env bash
# Step time breakdown on an asynchronous device, measured by the device's clock. GEMMs alone advance the emulated clock,
# so the expected times are exact.
#   tests/cuda/times.sh BUILD/emulated/gpttrain
set -euo pipefail
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"

small="--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --train.micro_batch 1"
small+=" --train.global_batch 4 --train.steps 6 --launch.ranks threads --device.kind cuda --data.train mock"
small+=" --schedule.type constant --log.tensorboard false --log.trace_steps 5:7"

train() {  # NAME FLAG...
  local name=$1
  shift
  # shellcheck disable=SC2086
  "$program" $small --log.name "$name" "$@" >"$name.txt" 2>&1 || { cat "$name.txt"; fail "training $*"; }
  zcat "runs/$name/trace-5.json.gz" >"$name.json"
}

# timer NAME STEP TIMER: its seconds, 0 if the record has none
timer() {
  local found
  found=$(grep "\"type\": \"step\", .*\"step\": $2," "runs/$1/log.jsonl" | grep -oE "\"$3\": [0-9.e-]+" | head -1 | cut -d ' ' -f 2)
  echo "${found:-0}"
}
value() { grep "\"type\": \"step\", .*\"step\": $2," "runs/$1/log.jsonl" | grep -oE "\"$3\": [^,}]+" | head -1 | cut -d ' ' -f 2; }
slices() { grep -cE "\"name\":\"$2 m[0-9]+ s[0-9]+\"" "$1.json" || true; }

# A microbatch that is one graph takes as long as its forward and backward together.
train off --device.graphs off
train on --device.graphs on
for step in 3 6; do
  forward=$(timer off $step forward) backward=$(timer off $step backward) whole=$(timer on $step microbatch)
  awk -v f="$forward" -v b="$backward" -v w="$whole" 'BEGIN {exit !(f > 0 && b > f && w > 0 && (f + b - w) ^ 2 < (1e-3 * w) ^ 2)}' ||
    fail "step $step: forward $forward, backward $backward, both as one graph $whole"
done
[ "$(timer on 6 forward)" = 0 ] && [ "$(timer off 6 microbatch)" = 0 ] || fail "times of graphs are mixed with others"
[ "$(value off 6 exposed_comm)" = null ] || fail "exposed_comm of one rank: $(value off 6 exposed_comm)"
[ "$(slices off F)" = 8 ] && [ "$(slices off B)" = 8 ] && [ "$(slices off FB)" = 0 ] || fail "the trace without graphs"
[ "$(slices on FB)" = 8 ] && [ "$(slices on F)" = 0 ] || fail "the trace with graphs"
echo "forward $forward s, backward $backward s, as one graph $whole s"

# Pipeline stages: on the last one a microbatch without a message in the middle is one graph; elsewhere it is two.
train stages --pp 2 --dp 2 --device.graphs on
for t in forward backward microbatch; do
  awk -v s="$(timer stages 6 $t)" 'BEGIN {exit !(s > 0)}' || fail "two stages: no $t"
done
[ "$(value stages 6 exposed_comm)" = null ] || fail "collectives between ranks: $(value stages 6 exposed_comm)"
[ "$(slices stages F)" = 6 ] && [ "$(slices stages B)" = 6 ] && [ "$(slices stages FB)" = 2 ] ||
  fail "the trace of two stages: $(slices stages F) F, $(slices stages B) B, $(slices stages FB) both"
grep -q "microbatch" stages.txt || fail "the table at the end has no row of microbatches"
echo "each stage's times have their timers"

# shellcheck disable=SC2086
"$program" bench ${small% --log.trace_steps*} --warmup 2 --steps 3 --out bench.jsonl >bench.txt 2>&1 ||
  { cat bench.txt; fail "bench"; }
grep -q '^device    median' bench.txt && grep -q '"stream_seconds":{"median":' bench.jsonl || { cat bench.txt; fail "bench"; }
