#!/usr/bin/env bash
# The process that supervises a job on three hosts is killed, the job is stopped by SIGHUP to every process of a host as
# a logout sends it, and stopped twice: the ranks of all hosts end, nothing of them or of Open MPI stays, and SIGHUP
# saves the step that was reached.
#   tests/hosts/killed_parent.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_job 3 "$@"
seq -f 'node%g slots=2' 3 >hosts.txt
start() {
  # shellcheck disable=SC2086
  on node1 "$gpttrain" launch $rig_model --model.layers 6 --data.train mock --pp 3 --dp 2 --train.steps 100000 \
    --checkpoint.every 20 --launch.hostfile hosts.txt --max-restarts 5 --log.name x \
    --fault.inject delay@step:ms=50 >out.txt 2>&1 &
  job=$!
  for _ in $(seq 600); do grep -q '"step": 2[0-9],' runs/x/log.jsonl 2>/dev/null && return; sleep 0.1; done
  fail "no step 20 within 60 s"
}
left() {  # processes, shared memory and session folders of any host
  local h
  for h in node1 node2 node3; do
    on $h pgrep -af '(orted|mpirun|gpttrain) '
    on $h sh -c "ls -d /dev/shm/* $rig_local/ompi.* 2>/dev/null"
  done
}
nothing_left() {
  for _ in $(seq 100); do [ -z "$(left)" ] && return; sleep 0.1; done
  left
  fail "left behind $1"
}

start
on node1 kill -KILL "$(on node1 pgrep -o -f "^$gpttrain launch")"
nothing_left "by the killed parent"

rm -rf runs
start
# shellcheck disable=SC2046
on node1 kill -HUP $(on node1 pgrep -f '(mpirun|gpttrain) ')
wait $job
code=$?
[ $code = 75 ] || fail "after SIGHUP to all of node1 the job ended with $code"
last=$(basename "$(ls -d runs/x/checkpoints/step-* | tail -1)")
steps=$(grep -c '"type": "step"' runs/x/log.jsonl)
[ $((10#${last#step-})) = "$steps" ] || fail "$steps steps, but the newest checkpoint is $last"
nothing_left "after SIGHUP"

rm -rf runs
start
parent=$(on node1 pgrep -o -f "^$gpttrain launch")
for n in node2 node3; do for p in $(on $n pgrep -f '^orted|gpttrain '); do on $n kill -STOP "$p"; done; done
on node1 kill -INT "$parent"
sleep 0.5
on node1 kill -INT "$parent"
wait $job
code=$?
[ $code = 130 ] || fail "after two SIGINT the job ended with $code"
for n in node2 node3; do for p in $(on $n pgrep -f '^orted|gpttrain '); do on $n kill -CONT "$p"; done; done
nothing_left "after two SIGINT"
echo "killed parent, SIGHUP to a host, two SIGINT with frozen hosts: nothing left; SIGHUP saved step $steps"
