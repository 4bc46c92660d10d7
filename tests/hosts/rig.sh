# Simulates hosts on one machine with namespaces. Each has its own network card, name, process numbers, sshd, /dev/shm,
# /tmp and local folder; all share one folder and one switch. Source this file; the functions below are its interface.
#
# GPT_RIG_NO_MPIRUN=1 hides mpirun and orted: gpttrain then starts ranks over ssh.
#
# Everything lives in this script's namespaces: the machine's addresses, routes and files stay untouched. Everything
# disappears with the script, even on SIGKILL: processes with the PID namespace, links with the network namespace, files
# with the tmpfs mounts of the mount namespace.
#
#   rig_job N "$@"      first line of a script that trains: rig_enter, rig_up N, then in $rig_shared with $gpttrain, the
#                       program that $1 names, hosts.txt with one slot per host, and $rig_model, flags of a small model
#   fail TEXT           exits with 1, printing TEXT and the end of out.txt, the job's output
#   rig_enter "$@"      first line of any other script: reruns it inside; exits 77 with a reason where that is refused
#   rig_up N            hosts node1 … nodeN, 10.77.0.1 … on one switch; waits until every sshd answers
#   on HOST CMD…        runs a command there
#   link_down HOST · link_up HOST     the card loses its carrier
#   drop HOST · undrop HOST           packets to and from it are lost silently
#   mute HOST · unmute HOST           packets from it are lost silently, those to it arrive
#   throttle HOST · unthrottle HOST   packets to it pass at 1 Mbit/s
#   slow_line HOST MS MBIT            its card is replaced by a line of MS ms one way and MBIT Mbit/s in each direction
#   refuse_ssh HOST · allow_ssh HOST  stops its sshd; running processes continue
#   slow_ssh HOST S     its sshd answers no earlier than after S seconds
#   kill_host HOST      all its processes die at once; the kernel closes their connections
#   power_off HOST      the same with the link cut first: peers receive nothing
#   boot HOST           after kill_host or power_off
#   freeze HOST PATTERN · thaw HOST PATTERN   SIGSTOP and SIGCONT for processes by command line
#   rig_down            kills every host
# Folders: $rig_shared is common to all, $rig_local separate on each host (same path).
rig=/run/rig
rig_shared=$rig/shared
rig_local=$rig/local
declare -A rig_init=() rig_number=()

rig_skip() {
  echo "SKIPPED: $*"
  exit 77
}

rig_job() {
  local hosts=$1
  shift
  rig_enter "$@"
  gpttrain=$(realpath "$1")
  [ "$(type -t rig_mounts)" != function ] || rig_mounts  # of the script: mounts that all hosts see
  rig_up "$hosts"
  cd $rig_shared || exit 1
  seq -f 'node%g slots=1' "$hosts" >hosts.txt
  rig_model="--model.hidden 32 --model.heads 4 --model.vocab 300 --model.seq 16 --train.global_batch 8
    --train.micro_batch 1 --device.kind cpu --schedule.type constant --log.tensorboard false"
}

fail() {
  echo "FAILED: $*"
  grep -v '^step ' out.txt | tail -40 | sed 's/^/  | /'
  exit 1
}

rig_enter() {
  [ "${GPT_RIG_INSIDE:-}" = 1 ] && { rig_prepare; return; }
  [ "$(id -u)" = 0 ] || rig_skip "hosts by namespaces need root"
  local here
  here=$(dirname "${BASH_SOURCE[0]}")
  RUNLEVEL=1 "$here/../../launch/setup.sh" --only openssh-server openssh-client iproute2 >/dev/null 2>&1 || true
  local tool
  for tool in /usr/sbin/sshd ip nsenter unshare ssh-keygen mpirun; do
    command -v "$tool" >/dev/null || rig_skip "$tool is missing and could not be installed"
  done
  unshare --net --uts --mount --pid --fork sh -c 'ip link add name br0 type bridge &&
    ip link add name v0 type veth peer name v1 && mount -t tmpfs none /run' >/dev/null 2>&1 || rig_skip "namespaces, bridges or mounts are refused here"
  export GPT_RIG_INSIDE=1
  exec unshare --net --uts --mount --pid --fork --kill-child --mount-proc "$BASH" "$(realpath "$0")" "$@"
}

rig_prepare() {
  mount -t tmpfs rig /run
  mkdir -p /run/sshd $rig_shared $rig_local $rig/keys
  ssh-keygen -q -t ed25519 -N '' -f $rig/keys/user
  ssh-keygen -q -t ed25519 -N '' -f $rig/keys/host
  printf '%s\n' "Host *" "  IdentityFile $rig/keys/user" "  UserKnownHostsFile $rig/keys/known" "  BatchMode yes" \
    >$rig/ssh_config
  { echo "Port 22"; echo "HostKey $rig/keys/host"; echo "AuthorizedKeysFile $rig/keys/user.pub"
    echo "StrictModes no"; echo "UsePAM no"; echo "PermitRootLogin yes"; echo "UseDNS no"; echo "MaxStartups 100"
    echo "SetEnv TMPDIR=$rig_local"; echo "PidFile none"; } >$rig/sshd_config
  echo "127.0.0.1 localhost" >$rig/hosts
  mount --bind $rig/ssh_config /etc/ssh/ssh_config
  mount --bind $rig/hosts /etc/hosts
  local tool
  [ -z "${GPT_RIG_NO_MPIRUN:-}" ] ||
    for tool in mpirun orted; do mount --bind /dev/null "$(readlink -f "$(command -v $tool)")"; done
  ip link set lo up
  ip link add name switch type bridge
  ip link set switch up
  trap rig_down EXIT
  trap 'exit 143' TERM INT HUP
}

rig_up() {
  local n
  for n in $(seq 1 "$1"); do
    rig_number[node$n]=$n
    echo "10.77.0.$n node$n" >>$rig/hosts
    echo "node$n,10.77.0.$n $(cut -d' ' -f1,2 $rig/keys/host.pub)" >>$rig/keys/known
  done
  for n in $(seq 1 "$1"); do boot "node$n"; done
}

# The first process of a host sleeps forever; killing it ends all others.
boot() {
  local host=$1 n=${rig_number[$1]} up=$rig/up-$1
  rm -f "$up"
  mkfifo "$up"
  unshare --net --uts --mount --pid --fork --kill-child --mount-proc "$BASH" -c "
    hostname $host
    mount -t tmpfs shm /dev/shm && mount -t tmpfs local $rig_local && ip link set lo up
    cat <$up >/dev/null
    /usr/sbin/sshd -f $rig/sshd_config
    exec -a rig-$host sleep infinity" </dev/null >$rig/log-$host 2>&1 3>&- &
  local parent=$! init=
  until init=$(cat "/proc/$parent/task/$parent/children" 2>/dev/null | tr -d ' ') && [ -n "$init" ] &&
        [ "$(readlink "/proc/$init/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
  disown "$parent"
  rig_init[$host]=$init
  ip link del "v$n" 2>/dev/null
  ip link add name "v$n" type veth peer name eth0 address "02:00:00:00:00:$n" netns "$init"  # kept across reboots
  ip link set "v$n" master switch up
  nsenter -t "$init" -n ip address add "10.77.0.$n/24" dev eth0
  nsenter -t "$init" -n ip link set eth0 up
  echo go >"$up"
  allow_ssh_wait "$host"
}

allow_ssh_wait() {
  local i
  for i in $(seq 1 500); do
    on "$1" bash -c 'exec 3<>/dev/tcp/127.0.0.1/22' 2>/dev/null && return
    sleep 0.02
  done
  echo "rig: no sshd on $1" >&2
  return 1
}

on() {
  local host=$1
  shift
  nsenter -t "${rig_init[$host]}" -m -u -n -p -- env -C "$PWD" TMPDIR=$rig_local HOSTNAME="$host" "$@"
}

link_down() { nsenter -t "${rig_init[$1]}" -n ip link set eth0 down; }
link_up() { nsenter -t "${rig_init[$1]}" -n ip link set eth0 up; }
drop() { ip link set "v${rig_number[$1]}" nomaster; }
undrop() { ip link set "v${rig_number[$1]}" master switch; }
mute() {  # the addresses of all others lead to no card
  local n
  for n in "${rig_number[@]}"; do
    nsenter -t "${rig_init[$1]}" -n ip neigh replace "10.77.0.$n" lladdr 02:00:00:00:ff:ff nud permanent dev eth0
  done
}
unmute() { nsenter -t "${rig_init[$1]}" -n ip neigh flush nud permanent dev eth0; }
throttle() { tc qdisc add dev "v${rig_number[$1]}" root tbf rate 1mbit burst 32kbit latency 400ms; }
unthrottle() { tc qdisc del dev "v${rig_number[$1]}" root; }
slow_line() {
  command -v python3 >/dev/null || rig_skip "python3 is missing"
  [ -c /dev/net/tun ] || rig_skip "/dev/net/tun is missing"
  local n=${rig_number[$1]} init=${rig_init[$1]}
  ip link del "v$n"
  : >"$rig/line-$1"
  python3 "$(dirname "${BASH_SOURCE[0]}")/slow_line.py" "v$n" "far$n" "$2" "$3" >"$rig/line-$1" 2>&1 3>&- &
  until grep -q ready "$rig/line-$1"; do
    kill -0 $! 2>/dev/null || { cat "$rig/line-$1"; rig_skip "no TAP interface"; }
    sleep 0.01
  done
  disown $!
  ip link set "v$n" master switch up
  ip link set "far$n" netns "$init"
  nsenter -t "$init" -n ip link set "far$n" name eth0 address "02:00:00:00:00:$n" up
  nsenter -t "$init" -n ip address add "10.77.0.$n/24" dev eth0
}
refuse_ssh() { on "$1" pkill -9 -f '^sshd: /usr/sbin/sshd .*listener'; }
allow_ssh() { on "$1" /usr/sbin/sshd -f $rig/sshd_config && allow_ssh_wait "$1"; }
slow_ssh() {
  on "$1" pkill -STOP -f '^sshd: /usr/sbin/sshd .*listener'
  { sleep "$2"; on "$1" pkill -CONT -f '^sshd: /usr/sbin/sshd .*listener'; } </dev/null >/dev/null 2>&1 3>&- &
  disown $!
}
kill_host() {
  kill -9 "${rig_init[$1]}"
  while kill -0 "${rig_init[$1]}" 2>/dev/null; do sleep 0.01; done
}
power_off() { drop "$1"; kill_host "$1"; }
freeze() { on "$1" pkill -STOP -f "$2"; }
thaw() { on "$1" pkill -CONT -f "$2"; }

rig_down() {
  local host
  for host in "${!rig_init[@]}"; do kill -9 "${rig_init[$host]}" 2>/dev/null; done
  return 0
}
