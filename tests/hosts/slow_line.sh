#!/usr/bin/env bash
# Two hosts connected by a line of 40 ms round trip and 100 Mbit/s: microbatches in flight hide its latency, the final
# state is bitwise that of threads, and the start block predicts the step from what `bench comm` measured.
#   tests/hosts/slow_line.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_job 2 "$@"
slow_line node2 20 100
export HOME=$rig_shared XDG_CACHE_HOME=$rig_shared/cache
model="$rig_model --model.layers 4 --data.train mock"
job="$model --pp 2 --launch.hostfile hosts.txt --train.steps 16 --checkpoint.every 0"

# shellcheck disable=SC2086
on node1 "$gpttrain" $model --pp 2 --train.steps 16 --checkpoint.every 0 --launch.ranks threads --log.name calm >out.txt 2>&1 ||
  fail "the run of threads"
# shellcheck disable=SC2086
on node1 "$gpttrain" bench comm $model --pp 2 --launch.hostfile hosts.txt --most 1 >out.txt 2>&1 || fail "bench comm"
grep -q 'kept in .*: runs on 2 machines' out.txt || fail "bench comm kept no times"
# shellcheck disable=SC2086
on node1 "$gpttrain" plan ${rig_model%%--schedule.type*} --model.layers 4 --pp 2 --device.threads "$(nproc)" \
  --device_type cpu --calibrate >out.txt 2>&1 || fail "plan --calibrate"

step_ms() { sed -n 's/.*"type": "step".*"step_seconds": \([0-9.e-]*\).*/\1/p' runs/$1/log.jsonl | tail -n +4 | sort -g |
  awk '{ t[NR] = $1 } END { printf "%.0f", 1000 * t[int((NR + 1) / 2)] }'; }
train() {  # NAME FLAGS...
  local name=$1
  shift
  # shellcheck disable=SC2086
  on node1 "$gpttrain" $job --log.name "$name" "$@" >out.txt 2>&1 || fail "$name"
  "$gpttrain" ckpt diff runs/$name runs/calm >diff.txt || { cat diff.txt; fail "$name is not bitwise the run of threads"; }
}
hidden=no  # a busy machine hides the line's latency from both: up to five pairs
for pair in 1 2 3 4 5; do
  train plain$pair
  grep -q '^prediction .* a step: compute .*; with --parallel.extra_in_flight [0-9]*: ' out.txt ||
    fail "no prediction with more microbatches in flight"
  sed -n 's/^prediction  */plain: /p' out.txt
  train deep$pair --parallel.extra_in_flight 6
  sed -n 's/^prediction  */deep: /p' out.txt
  plain=$(step_ms plain$pair) deep=$(step_ms deep$pair)
  [ "$deep" -gt 40 ] || fail "a step of $deep ms on a line of 40 ms: the line is not used"
  echo "a step takes $plain ms, with all microbatches in flight $deep ms; bitwise the run of threads"
  [ $((10 * deep)) -ge $((8 * plain)) ] || { hidden=yes; break; }
done
[ $hidden = yes ] || fail "all microbatches in flight do not hide the line's latency"
