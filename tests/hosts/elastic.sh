#!/usr/bin/env bash
# One of three hosts dies and there is no spare: launch.min_dp lets the job go on with two replicas, and once the host
# answers again the job stops at its next checkpoint and restarts with three. Every part is bitwise the run that resumes
# the same checkpoint by hand in that layout.
#   tests/hosts/elastic.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_job 3 "$@"
model="$rig_model --model.layers 2 --data.train mock --train.global_batch 12 --train.micro_batch 2 --zero 1
  --checkpoint.every 20 --checkpoint.keep 100"
steps=360
# shellcheck disable=SC2086
on node1 "$gpttrain" launch $model --dp 3 --launch.hostfile hosts.txt --launch.min_dp 2 --max-restarts 5 --log.name x \
  --train.steps $steps --fault.inject delay@step:ms=50 >out.txt 2>&1 &
job=$!
saved=runs/x/checkpoints

await() {  # PATTERN SECONDS
  for _ in $(seq $((10 * $2))); do grep -q "$1" out.txt && return; sleep 0.1; done
  fail "not seen within $2 s: $1"
}
step_of() { sed -n "s/^gpttrain: $1 from step \([0-9]*\): .*/\1/p" out.txt; }

# by_hand DP FROM TO: resumes step FROM of the job with DP replicas; its step TO must be that of the job.
by_hand() {
  local from to
  from=$(printf '%s/step-%09d' $saved "$2") to=$(printf 'step-%09d' "$3")
  rm -rf runs/hand && mkdir -p runs/hand/checkpoints && cp -r "$from" runs/hand/checkpoints
  # shellcheck disable=SC2086
  "$gpttrain" $model --dp "$1" --launch.ranks threads --log.name hand --train.steps "$3" >out.hand 2>&1 ||
    { cat out.hand; fail "by hand with dp $1"; }
  "$gpttrain" ckpt diff "$saved/$to" "runs/hand/checkpoints/$to" >diff.txt ||
    { cat diff.txt; fail "dp $1 from step $2: step $3 differs from the run by hand"; }
}

for _ in $(seq 600); do [ -e $saved/step-000000040 ] && break; sleep 0.1; done
[ -e $saved/step-000000040 ] || fail "no checkpoint of step 40 within 60 s"
kill_host node3
lost=$SECONDS
await '^gpttrain: dp 3 -> 2 from step ' 90
await '^resumed ' 60
echo "went on with two replicas $((SECONDS - lost)) s after the loss"
boot node3
await '^gpttrain: dp 2 -> 3 from step ' 90
wait $job || fail "the job ended with $?"

grep -q '^gpttrain: dp 3 -> 2 from step [0-9]*: node3 (.*); global_batch 12 = micro_batch 2 x grad_accum 3 x dp 2$' \
  out.txt || fail "host and batch are not reported"
grep -q '^gpttrain: node3 answers again; the job stops here and restarts with dp 3$' out.txt || fail "return of node3"
[ "$(grep -c '"action":"dp [23] -> [23]"' runs/x/restarts.jsonl)" = 2 ] || fail "restarts.jsonl lacks the layouts"
[ "$(grep -c '"action":"restart"' runs/x/restarts.jsonl)" = 1 ] || fail "the return of a host is not a failure"
fewer=$(step_of 'dp 3 -> 2') more=$(step_of 'dp 2 -> 3')
by_hand 2 "$fewer" "$more"
by_hand 3 "$more" $steps
echo "dp 3 to step $fewer, dp 2 to step $more, dp 3 to step $steps: bitwise the runs by hand"
