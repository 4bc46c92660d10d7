#!/usr/bin/env bash
# Two of three hosts train; the third connects to all their TCP ports, sends 18 bytes and holds the connections: to
# ports of mpirun and of ranks from startup on, to those of orted only once ranks train. Nothing stalls, nothing
# answers, and the losses equal those of an undisturbed run.
#   tests/hosts/foreign.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_enter "$@"
gpttrain=$(realpath "$1")
fail() { echo "FAILED: $*"; sed 's/^/  | /' out.txt; exit 1; }

rig_up 3
cd $rig_shared
printf 'node%d slots=2\n' 1 2 >hosts.txt
model="--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --data.train mock
  --train.global_batch 8 --train.micro_batch 1 --device.kind cpu --schedule.type constant --log.tensorboard false
  --tp 2 --pp 2 --train.steps 60 --checkpoint.every 0"
# shellcheck disable=SC2086
on node3 "$gpttrain" $model --launch.ranks threads --log.name calm >out.txt 2>&1 || fail "the undisturbed run"

# ss lists a socket without its program when that opened it a moment ago; such a port waits for the next round.
ports() { on "$1" ss -Htlnp | grep 'users:' | grep -v "$2" | awk '{n = split($4, a, ":"); if (a[n] != 22 && $4 !~ /^(127|\[::1)/) print a[n]}' | sort -u; }
# Opens a connection from node3 to each port of a host not yet listed in FILE, sends 18 bytes and holds it. Accepted
# connections are recorded in accepted.txt. WHOSE: a program whose ports are exempt.
disturb() {  # HOST FILE WHOSE
  local port
  for port in $(ports "$1" "$3"); do
    grep -q "^$1:$port$" "$2" && continue
    echo "$1:$port" >>"$2"
    on node3 bash -c "exec 3<>/dev/tcp/10.77.0.${1#node}/$port && printf 'GET / HTTP/1.0\r\n\r\n' >&3 &&
      echo $1:$port >>accepted.txt && exec sleep 600" >/dev/null 2>&1 &
  done
}

# shellcheck disable=SC2086
on node1 "$gpttrain" $model --launch.hostfile hosts.txt --log.name x --comm.interface 10.77.0.0/24 \
  --fault.inject delay@step:ms=50 >out.txt 2>&1 &
job=$!
touch early.txt late.txt accepted.txt
for _ in $(seq 600); do
  disturb node1 early.txt '"orted"'
  disturb node2 early.txt '"orted"'
  grep -q '^step 5/' out.txt && break
  kill -0 $job 2>/dev/null || break
  sleep 0.1
done
grep -q '^step 5/' out.txt || fail "no step 5 within 60 s; ports tried: $(tr '\n' ' ' <early.txt)"
: >accepted.txt
disturb node1 late.txt nobody
disturb node2 late.txt nobody
[ "$(wc -l <late.txt)" -ge 4 ] || fail "ranks open no port: nothing is tested"
wait $job || fail "the job ended with $?"
[ -s early.txt ] || fail "no port was tried during startup"
[ ! -s accepted.txt ] || fail "accepted during training: $(tr '\n' ' ' <accepted.txt)"
losses() { grep -o '"loss": [0-9.e-]*' "runs/$1/log.jsonl"; }
[ "$(losses x)" = "$(losses calm)" ] || fail "losses differ from the undisturbed run"
slowest=$(sed -n 's/.*"type": "step".*"step_seconds": \([0-9.e-]*\).*/\1/p' runs/x/log.jsonl | tail -n +2 | sort -g | tail -1)
! grep -qi 'stalled' out.txt || fail "stalled"
echo "$(wc -l <early.txt) ports tried at the start, $(wc -l <late.txt) later, none of those answered; slowest step $slowest s; equal losses"
