#!/usr/bin/env bash
# Ranks of two hosts start by torchrun's variables over TCP: final state bitwise that of threads. A host that loses power
# ends the others with its rank's name.
#   tests/hosts/torchrun.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_job 2 "$@"
model="$rig_model --model.layers 4 --data.train mock --tp 2 --pp 2 --checkpoint.every 0"

# start NAME FLAGS...: two ranks on each host; output in out.txt, exit codes in code-RANK.
start() {
  local name=$1 r
  shift
  for r in 0 1 2 3; do
    # shellcheck disable=SC2086
    (on "node$((1 + r / 2))" env RANK=$r WORLD_SIZE=4 LOCAL_RANK=$((r % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1 \
      MASTER_PORT=29500 GPTTRAIN_JOB_SECRET=0123456789abcdef "$gpttrain" $model --log.name "$name" "$@" >>out.txt 2>&1
    echo $? >"code-$r") &
  done
}

: >out.txt
# shellcheck disable=SC2086
"$gpttrain" $model --launch.ranks threads --log.name calm --train.steps 8 >out.txt 2>&1 || fail "the run of threads"
start x --train.steps 8
wait
[ "$(cat code-?)" = $'0\n0\n0\n0' ] || fail "exit codes: $(cat code-?)"
"$gpttrain" ckpt diff runs/x runs/calm >diff.txt || { cat diff.txt; fail "not bitwise the run of threads"; }

rm -f code-*
start y --train.steps 100000
for _ in $(seq 600); do [ -s runs/y/log.jsonl ] && break; sleep 0.1; done
[ -s runs/y/log.jsonl ] || fail "no step within 60 s"
on node1 ss -Hltn | grep -q ':29500 ' && fail "rank 0 still listens"
power_off node2
lost=$SECONDS
for _ in $(seq 900); do [ -s code-0 ] && [ -s code-1 ] && [ "$(cat code-0)" != 0 ] && break; sleep 0.1; done
[ "$(cat code-0 code-1)" = $'74\n74' ] || [ "$(cat code-0 code-1)" = $'124\n124' ] || fail "codes $(cat code-0 code-1)"
grep -Eq 'connection to rank [23] ended|lost: .*ranks? [23]' out.txt || fail "the lost ranks are not named"
echo "two hosts trained as threads do; the loss of one ended the job after $((SECONDS - lost)) s"
