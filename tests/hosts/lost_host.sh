#!/usr/bin/env bash
# A host loses power while two of three train: the report names it, the job resumes on the spare from the newest
# checkpoint, and its final state is bitwise that of an undisturbed run. Default settings, one command.
#   tests/hosts/lost_host.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_job 3 "$@"
nothing_left() {  # of a job that has ended; a daemon needs a second to notice that its mpirun is gone
  local left
  for _ in $(seq 50); do
    left=$(for host in node1 node3; do on $host pgrep -af '(orted|mpirun|gpttrain) '; done)
    [ -z "$left" ] && return
    sleep 0.1
  done
  fail "left behind: $left"
}
model="$rig_model --model.layers 4 --data.train mock --pp 2 --train.steps 60 --checkpoint.every 20"
# shellcheck disable=SC2086
on node3 "$gpttrain" $model --launch.ranks threads --log.name calm >out.txt 2>&1 || fail "the undisturbed run"

# shellcheck disable=SC2086
on node1 "$gpttrain" launch $model --launch.hostfile hosts.txt --max-restarts 5 --log.name x \
  --fault.inject delay@step:ms=50 >out.txt 2>&1 &
job=$!
for _ in $(seq 600); do [ -e runs/x/checkpoints/step-000000040 ] && break; sleep 0.1; done
[ -e runs/x/checkpoints/step-000000040 ] || fail "no checkpoint of step 40 within 60 s"
power_off node2
lost=$SECONDS
for _ in $(seq 900); do grep -q '^resumed ' out.txt && break; sleep 0.1; done
grep -q '^resumed ' out.txt || fail "not started again within 90 s"
echo "started again $((SECONDS - lost)) s after the loss"
wait $job || fail "the job ended with $?"

grep -q 'lost: node2 (rank 1) ' out.txt || fail "the machine and its rank are not named"
grep -q '^gpttrain: the run ended with .*; restart 1 of 5 in 0 s, from step 40 ' out.txt ||
  fail "not from the newest checkpoint"
[ "$(wc -l <runs/x/restarts.jsonl)" = 1 ] || fail "more than one restart"
"$gpttrain" ckpt diff runs/x runs/calm >diff.txt || { cat diff.txt; fail "not bitwise the undisturbed run"; }
nothing_left
echo "node2 was named, node3 took over from step 40, final state bitwise that of the undisturbed run"

boot node2
printf '%s slots=1\n' node3 node2 >hosts.txt  # node1 starts them and has no rank
# shellcheck disable=SC2086
on node1 timeout -s KILL 200 "$gpttrain" $model --launch.hostfile hosts.txt --log.name plain --train.steps 100000 \
  --fault.inject delay@step:ms=50 >out.txt 2>&1 &
job=$!
for _ in $(seq 600); do [ -e runs/plain/checkpoints/step-000000040 ] && break; sleep 0.1; done
[ -e runs/plain/checkpoints/step-000000040 ] || fail "no checkpoint of step 40 within 60 s"
power_off node2
lost=$SECONDS
wait $job
code=$?
[ $code = 124 ] || fail "the job without a supervisor ended with $code"
grep -q '^gpttrain: lost: no sign of life from rank 1 (node2.* s: machine down or unreachable$' out.txt ||
  fail "the machine is not named, or not known to be unreachable"
! grep -q 'Process received signal' out.txt || fail "mpirun's crash is shown"
nothing_left
echo "without a supervisor the job ended $((SECONDS - lost)) s after the loss of node2, which it named"
