#!/usr/bin/env bash
# Hosts fail at random while a supervised job trains on three of four: link down, packets dropped in both directions or
# one, power off, also during a save whose files are then cut, host crashed, one rank killed, also while the sshd of a
# healthy host is slow, ranks frozen, sshd refusing after a crash. Each fault must be reported with its host and no
# other, and the job must continue. A slow line, a full disk and ten busy processes, 15 s each, must not end an attempt.
# The final state must be bitwise that of an undisturbed run. Prints the time from each fault to the next step, median
# and worst, and the goodput.
#   tests/hosts/punish.sh GPTTRAIN [MINUTES [SEED]]      default: 30 minutes, seeded by the date
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_mounts() { mkdir $rig_shared/disk && mount -t tmpfs -o size=64m disk $rig_shared/disk; }
rig_job 4 "$@"
minutes=${2:-30}
RANDOM=${3:-$(date +%Y%m%d)}
model="$rig_model --model.layers 6 --data.train mock"
# shellcheck disable=SC2086
on node1 "$gpttrain" launch $model --pp 3 --train.steps 10000000 --checkpoint.every 20 --checkpoint.keep 3 \
  --checkpoint.dir $rig_shared/disk/x --launch.hostfile hosts.txt \
  --max-restarts 100000 --log.name x --fault.inject delay@step:ms=50 >out.txt 2>&1 &
job=$!
begun=$SECONDS
records=runs/x/log.jsonl
steps() {
  local n
  n=$(grep -c '"type": "step"' $records 2>/dev/null)
  echo "${n:-0}"
}
restarts() { cat runs/x/restarts.jsonl 2>/dev/null | wc -l; }
more_than() {  # COUNT WHAT SECONDS: waits until the count of WHAT exceeds COUNT
  local end=$((SECONDS + $3))
  until [ "$("$2")" -gt "$1" ]; do
    [ $SECONDS -lt $end ] || return 1
    kill -0 $job 2>/dev/null || fail "the job has ended"
    sleep 0.1
  done
}
ranks_of() { on "$1" pgrep -f "^$gpttrain launch .*--pp 3" | while read -r p; do
    on "$1" grep -qzE '^(OMPI_COMM_WORLD_)?RANK=' "/proc/$p/environ" 2>/dev/null && echo "$p"; done; }
freeze_ranks() { for p in $(ranks_of "$1"); do on "$1" kill -STOP "$p"; done; }
end_ranks() { for p in $(ranks_of "$1"); do on "$1" kill -KILL "$p" 2>/dev/null; done; }
crash_and_refuse() { refuse_ssh "$1"; on "$1" pkill -9 -f 'sshd:|orted'; end_ranks "$1"; }
kill_rank() { end_ranks "$1"; }
kill_rank_beside_slow_ssh() {
  for h in node2 node3 node4; do [ $h != "$1" ] && slow_ssh $h 9 && break; done
  end_ranks "$1"
}
power_off_in_save() {  # files of an uncommitted save lose what was not synced
  for _ in $(seq 3000); do ls -d $rig_shared/disk/x/.tmp-* >/dev/null 2>&1 && break; sleep 0.01; done
  power_off "$1"
  for f in $rig_shared/disk/x/.tmp-*/*; do [ -f "$f" ] && truncate -s $(($(stat -c %s "$f") / 2)) "$f"; done
}
busy() { for _ in $(seq 10); do timeout 15 sh -c 'while :; do :; done' & done; }
full_disk() { head -c 100M /dev/zero >$rig_shared/disk/fill 2>/dev/null; }
# endure KIND HOST: a fault that no attempt may end for; steps go on, and a newer checkpoint follows it.
endure() {
  local kind=$1 host=$2 before newest at
  before=$(restarts) newest=$(ls $rig_shared/disk/x | tail -1) at=$SECONDS
  $kind "$host"
  more_than "$(steps)" steps 60 || fail "$kind $host: no step within 60 s"
  while [ $((SECONDS - at)) -lt 15 ]; do sleep 0.5; done
  case $kind in throttle) unthrottle "$host" ;; full_disk) rm $rig_shared/disk/fill ;; esac
  until [[ $(ls $rig_shared/disk/x | grep step | tail -1) > $newest ]]; do
    [ $((SECONDS - at)) -lt 120 ] || fail "$kind $host: no newer checkpoint"
    sleep 0.5
  done
  [ "$(restarts)" = "$before" ] || fail "$kind $host ended an attempt"
  echo "$kind $host: the attempt goes on"
}

more_than 0 steps 120 || fail "no first step"
times=()
while [ $((SECONDS - begun)) -lt $((60 * minutes)) ]; do
  sleep $((5 + RANDOM % 10))
  kinds=(link_down drop mute power_off power_off_in_save kill_host kill_rank kill_rank_beside_slow_ssh freeze_ranks
    crash_and_refuse throttle full_disk busy)
  kind=${kinds[RANDOM % ${#kinds[@]}]}
  hosts=()
  for h in node2 node3 node4; do [ -n "$(ranks_of $h)" ] && hosts+=($h); done
  [ $kind = freeze_ranks ] && hosts+=(node1)
  [ ${#hosts[@]} -gt 0 ] || fail "no ranks anywhere"
  host=${hosts[RANDOM % ${#hosts[@]}]}
  case $kind in throttle | full_disk | busy) endure $kind $host; continue ;; esac
  before=$(restarts)
  at=$(date +%s%N)
  $kind $host
  more_than "$before" restarts 120 || fail "$kind $host: not noticed within 120 s"
  done_steps=$(steps)
  more_than "$done_steps" steps 120 || fail "$kind $host: no step within 120 s of the restart"
  ms=$((($(date +%s%N) - at) / 1000000))
  times+=($ms)
  suspect=$(tail -n +$((before + 1)) runs/x/restarts.jsonl | sed 's/.*"suspect":\(null\|"[^"]*"\).*/\1/' | head -1)
  echo "$kind $host: next step after $((ms / 1000)).$((ms % 1000 / 100)) s, blamed: $suspect"
  [[ $suspect == *"$host"* ]] || fail "$kind $host is not named"
  for h in node1 node2 node3 node4; do
    [ $h = $host ] || [[ $suspect != *"$h"* ]] || fail "$kind $host: $h is named too"
  done
  case $kind in
    link_down) link_up $host ;;
    drop) undrop $host ;;
    mute) unmute $host ;;
    power_off | power_off_in_save | kill_host) boot $host ;;
    freeze_ranks | kill_rank*) ;;  # they ended with the attempt
    crash_and_refuse) allow_ssh $host ;;
  esac
done

wall=$((SECONDS - begun))
on node1 pkill -TERM -o -f "^$gpttrain launch "
wait $job
[ $? = 75 ] || fail "after SIGTERM the job ended with $?"
last=$(basename "$(ls -d $rig_shared/disk/x/step-* | tail -1)")
number=$((10#${last#step-}))
# shellcheck disable=SC2086
"$gpttrain" $model --train.steps $number --checkpoint.every 0 --log.name calm >calm.txt 2>&1 || { cat calm.txt; fail "the undisturbed run"; }
"$gpttrain" ckpt diff $rig_shared/disk/x runs/calm >diff.txt || { cat diff.txt; fail "not bitwise the undisturbed run at step $number"; }
sorted=($(printf '%s\n' "${times[@]}" | sort -n))
useful=$(sed -n 's/.*"type": "step".*"step_seconds": \([0-9.e-]*\).*/\1/p' $records | sort -g |
  awk -v n=$number '{ t[NR] = $1 } END { print n * t[int((NR + 1) / 2)] }')
awk -v n=${#sorted[@]} -v median=${sorted[$((${#sorted[@]} / 2))]} -v worst=${sorted[-1]} -v steps=$number -v useful=$useful \
  -v wall=$wall 'BEGIN { printf "%d events, next step after %.1f s (median), %.1f s (worst); step %d bitwise that of the undisturbed run; goodput %.0f %%\n",
  n, median / 1000, worst / 1000, steps, 100 * useful / wall }'
