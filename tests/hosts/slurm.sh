#!/usr/bin/env bash
# Jobs under a real Slurm on three simulated hosts: the batch script of --print-sbatch runs into its time limit, saves,
# is requeued, and ends bitwise as a run of threads; a signal before or after MPI_Init ends a step with 75; a step
# without --mpi=pmix is refused with the flag that it lacks. Takes five minutes: Slurm delays a requeued job.
#   tests/hosts/slurm.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
if [ "${GPT_RIG_INSIDE:-}" != 1 ] && ! command -v slurmctld >/dev/null; then
  RUNLEVEL=1 "$(dirname "$0")/../../launch/setup.sh" --only slurmctld slurmd slurm-client munge >/dev/null 2>&1 || true
fi
rig_job 3 "$@"
for tool in slurmctld slurmd srun munged; do
  PATH=$PATH:/usr/sbin command -v $tool >/dev/null || rig_skip "$tool is missing and could not be installed"
done

# ---- Slurm: the controller on node1, a daemon on each host, one munged for all ----
mkdir -p /run/munge $rig/munge $rig/state
chmod 755 /run/munge
chmod 700 $rig/munge
head -c 1024 /dev/urandom >$rig/munge/key
chmod 400 $rig/munge/key
munged --force --key-file $rig/munge/key --socket /run/munge/munge.socket.2 --pid-file $rig/munge/pid \
  --log-file $rig/munge/log --seed-file $rig/munge/seed >out.txt 2>&1 || fail "munged does not start"
export SLURM_CONF=$rig/slurm.conf
cat >$SLURM_CONF <<CONF
ClusterName=rig
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$rig/state
SlurmdSpoolDir=$rig_local/spool
SlurmctldPidFile=$rig/slurmctld.pid
SlurmdPidFile=$rig_local/slurmd.pid
SlurmctldLogFile=$rig/slurmctld.log
SlurmdLogFile=$rig/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=10
SlurmdParameters=config_overrides
NodeName=node[1-3] CPUs=3 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
slurm() { on node1 env SLURM_CONF="$SLURM_CONF" "$@"; }
slurm slurmctld >out.txt 2>&1 </dev/null 3>&- || fail "slurmctld does not start"
for host in node1 node2 node3; do
  on $host env SLURM_CONF="$SLURM_CONF" sh -c "mkdir -p $rig_local/spool $rig_local/tmp &&
    mount --bind $rig_local/tmp /tmp && slurmd" >out.txt 2>&1 </dev/null 3>&- || fail "slurmd does not start on $host"
done
waited() {  # SECONDS COMMAND...: whether the command succeeds within that time
  local until=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $until ] || return 1
    sleep 0.5
  done
}
all_idle() { [ "$(slurm sinfo -h -o '%t %D')" = "idle 3" ]; }
waited 60 all_idle || { slurm sinfo >out.txt; fail "Slurm's nodes are not idle"; }
model="$rig_model --model.layers 4 --data.train mock --pp 2 --checkpoint.every 1000"

# ---- a time limit: 1 minute, the signal 40 s before it; half a second a step ----
steps=140  # more than the limit admits
# shellcheck disable=SC2086
"$gpttrain" train $model --train.steps $steps --log.name batch --fault.inject delay@step:rank=0,ms=500 --print-sbatch 2 \
  >job.sbatch || fail "--print-sbatch"
sed -i 's/--time=24:00:00 */--time=1 /; s/USR1@300 */USR1@40 /' job.sbatch
grep -q -- '--time=1 ' job.sbatch && grep -q 'USR1@40 ' job.sbatch || { cp job.sbatch out.txt; fail "the printed script has no time limit and signal"; }
mkdir -p runs/batch
slurm sbatch job.sbatch >out.txt 2>&1 || fail "sbatch"
over() { [ -z "$(slurm squeue -h)" ]; }
waited 600 over || { slurm squeue >>out.txt; fail "the batch job has not ended after 10 minutes"; }
cat runs/batch/slurm-*.log >out.txt
# shellcheck disable=SC2086
"$gpttrain" $model --train.steps $steps --launch.ranks threads --log.name calm >calm.txt 2>&1 || { cp calm.txt out.txt; fail "the run of threads"; }
"$gpttrain" ckpt diff runs/batch runs/calm >diff.txt || { cat diff.txt; fail "the requeued job is not bitwise the run of threads"; }
starts=$(grep -c '"type": "start"' runs/batch/log.jsonl)
[ "$starts" -gt 1 ] || fail "the batch job was not requeued: it started $starts times"
echo "a batch job saved at its time limit, was requeued and ended after $starts starts, bitwise the run of threads"

# ---- signals at any time after the ranks exist ----
for delay in 0.05 0.2 0.4 3; do
  name=signal-$delay
  # shellcheck disable=SC2086
  slurm srun -N2 -n2 --ntasks-per-node=1 --mpi=pmix --kill-on-bad-exit=1 "$gpttrain" $model --train.steps 100000 \
    --log.name $name >out.txt 2>&1 3>&- &
  job=$!
  exists() { on node2 pgrep -f "^$gpttrain --model"; }
  waited 60 exists || fail "no rank on node2"
  sleep $delay
  for host in node1 node2; do on $host pkill -USR1 -f "^$gpttrain --model"; done
  code=0
  wait $job || code=$?
  [ $code = 75 ] || fail "USR1 after $delay s: exit code $code"
done
echo "USR1 0.05 to 3 s after the start of the ranks: exit code 75"

# ---- a step without --mpi=pmix ----
# shellcheck disable=SC2086
slurm srun -N2 -n2 --ntasks-per-node=1 --mpi=none "$gpttrain" $model --train.steps 2 --log.name none >out.txt 2>&1 &&
  fail "a step without --mpi=pmix ran"
grep -q -- 'use srun --mpi=pmix gpttrain' out.txt || fail "the message does not name --mpi=pmix"
echo "a step without --mpi=pmix is refused"
