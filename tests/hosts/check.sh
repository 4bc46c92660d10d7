#!/usr/bin/env bash
# gpttrain check on three hosts: a table when all is well, otherwise one line per problem, naming the host. A job that
# cannot start reports the same before it starts anything.
#   tests/hosts/check.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_enter "$@"
gpttrain=$(realpath "$1")
fail() { echo "FAILED: $*"; sed 's/^/  | /' out.txt; exit 1; }

rig_up 3
cd $rig_shared
printf 'node%d slots=2\n' 1 2 3 >hosts.txt
check() {  # CODE FLAG…
  local code=$1 got=0
  shift
  on node1 "$gpttrain" check --hostfile hosts.txt "$@" >out.txt 2>&1 || got=$?
  [ $got = "$code" ] || fail "check $*: exit code $got, expected $code"
}
prints() { grep -qE "$1" out.txt || fail "not printed: $1"; }

check 0
prints '^3 hosts are ready'
for k in 1 2 3; do prints "^node$k +2 .* eth0 10\.77\.0\.$k +none"; done
for pair in 'node1 - node2' 'node1 - node3' 'node2 - node3'; do prints "^$pair +[0-9]+ us +[0-9.]+ [kMG]B/s"; done
[ -z "$(ls -A | grep -v -x -e hosts.txt -e out.txt)" ] || fail "check left files: $(ls -A)"
sed -n '/^link/,$p' out.txt

echo 12345 >corpus.txt
for k in 1 3; do on node$k cp corpus.txt $rig_local/corpus.txt; done
check 2 --data.train $rig_local/corpus.txt
prints "$rig_local/corpus.txt: 6 B on node1, node3; missing on node2; copy it"
on node2 sh -c "echo 123 >$rig_local/corpus.txt"
check 2 --data.train $rig_local/corpus.txt
prints "$rig_local/corpus.txt: 6 B on node1, node3; 4 B on node2"
check 2 --log.dir $rig_local/runs
prints 'run folder: shared on node1; not shared on node2, node3; checkpoints need'
on node2 ip link add name eth1 type veth peer name eth2 && on node2 ip addr add 10.88.0.2/24 dev eth1 && on node2 ip link set eth1 up
check 2
prints 'node2: 2 networks are up \(eth0 10\.77\.0\.2, eth1 10\.88\.0\.2\).*--comm.interface'
check 0 --comm.interface 10.77.0.0/24
on node2 ip link del eth1
echo "differing and missing items are named with their hosts"

train() {  # CODE TEXT: a job on all three hosts fails to start with one message that contains TEXT
  local code=$1 text=$2 program=${3:-$gpttrain} got=0
  on node1 "$program" --model.layers 2 --model.hidden 32 --model.heads 4 --model.vocab 64 --model.seq 16 --data.train mock \
    --train.global_batch 6 --train.micro_batch 1 --train.steps 1 --device.kind cpu --hostfile hosts.txt --dp 6 \
    --log.tensorboard false --log.name job >out.txt 2>&1 || got=$?
  [ $got = "$code" ] || fail "a job: exit code $got, expected $code"
  [ "$(grep -c 'cannot start on these hosts' out.txt)" = 1 ] || fail "not one message"
  prints "$text"
  prints 'Nothing was started'
  [ ! -e runs/job ] || fail "something was started"
}
on node1 cp "$gpttrain" $rig_local/gpttrain
on node3 cp "$gpttrain" $rig_local/gpttrain
train 2 "node2: $rig_local/gpttrain does not start there: .*(not found|No such file)" $rig_local/gpttrain
on node2 cp "$gpttrain" $rig_local/gpttrain
on node2 chmod -x $rig_local/gpttrain
train 2 "node2: $rig_local/gpttrain does not start there: .*[Pp]ermission denied" $rig_local/gpttrain
refuse_ssh node3
train 16 'node3: ssh: .*Connection refused'
check 16
prints 'node3: ssh: .*Connection refused'
allow_ssh node3
echo "node9 slots=2" >>hosts.txt
sed -i 2d hosts.txt
train 16 'node9: ssh: .*(not known|resolve|Temporary failure)'
printf 'node%d slots=2\n' 1 2 3 >hosts.txt
echo "node2,10.77.0.2 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8OTHERKEYOTHERKEYOTHERKEYOTHERKEYOTHERKEY0" >$rig/keys/other
mv $rig/keys/known $rig/keys/aside && cp $rig/keys/other $rig/keys/known
train 16 'node[23]: ssh: .*(verification failed|REMOTE HOST|changed)'
mv $rig/keys/aside $rig/keys/known
drop node2
train 16 'node2: .*(timed out|no answer)'
undrop node2
echo "a job that cannot start is refused with the host before anything is started"
