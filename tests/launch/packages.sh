#!/usr/bin/env bash
# Wheel and Debian package as built by launch/packages.sh, each installed into a root folder that holds glibc and nothing
# else (for the wheel's installation also Python, removed before the program runs) and run there by chroot: training as
# threads and as processes, the manual page and the completions, a reader on glibc too old, removal without a rest.
#   tests/launch/packages.sh PACKAGES
set -euo pipefail
packages=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*"; exit 1; }
skip() { echo "SKIPPED: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "chroot needs root"
mkdir probe
unshare --mount mount --bind /proc probe 2>/dev/null || skip "a mount namespace is refused"
for tool in dpkg dpkg-query dpkg-deb chroot /usr/bin/python3; do command -v $tool >/dev/null || skip "$tool is missing"; done

wheel=$(ls "$packages"/gpttrain-*.whl)
deb=$(ls "$packages"/gpttrain_*_amd64.deb)
[ "$(stat -c %s "$wheel")" -le 42000000 ] || fail "$(ls -l "$wheel"): more than 42 MB"

put() {  # ROOT PACKAGE…: copies the files of installed Debian packages
  local root=$1
  shift
  dpkg-query -L "$@" | while read -r file; do [ -d "$file" ] || echo "$file"; done |
    grep -v '^/usr/share/\(doc\|locale\|man\|lintian\)/' | tar -cf - -T - 2>/dev/null | tar -xf - -C "$root"
}
bare() {  # ROOT: a root folder with libc6 only, known to dpkg
  mkdir -p "$1"/{proc,dev,tmp,var/lib/dpkg/info,var/lib/dpkg/updates,usr/bin}
  put "$1" libc6
  dpkg-query -s libc6 >"$1/var/lib/dpkg/status"
}
within() {  # ROOT COMMAND…: as the only process tree of a mount namespace
  local root=$1
  shift
  # shellcheck disable=SC2016
  env -i HOME=/tmp PATH=/usr/local/bin:/usr/bin:/usr/sbin unshare --mount bash -c \
    'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"' "$root" "$@"
}
losses() { grep '"type": "step"' "$1" | sed 's/.*"loss": \([0-9.e-]*\).*/\1/'; }
trains() {  # ROOT PROGRAM
  local ranks
  for ranks in threads processes; do
    within "$1" "$2" --model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 \
      --train.micro_batch 1 --train.global_batch 4 --train.steps 3 --data.train mock --log.tensorboard false \
      --device.kind cpu --dp 2 --launch.ranks $ranks --log.dir /tmp/runs --log.name $ranks >out.txt 2>&1 ||
      { cat out.txt; fail "$2: 2 ranks as $ranks"; }
    [ "$(losses "$1/tmp/runs/$ranks/log.jsonl" | wc -l)" = 3 ] || { cat out.txt; fail "$2: $ranks did not make 3 steps"; }
  done
  [ "$(losses "$1/tmp/runs/threads/log.jsonl")" = "$(losses "$1/tmp/runs/processes/log.jsonl")" ] ||
    fail "$2: losses of threads and processes differ"
}

# The Debian package.
bare debian
dpkg="dpkg --root=$work/debian --log=/dev/null"
sed 's/^Version: .*/Version: 2.17-1/' debian/var/lib/dpkg/status >status && mv debian/var/lib/dpkg/status kept
mv status debian/var/lib/dpkg/status
! $dpkg --install "$deb" >old.txt 2>&1 || fail "glibc 2.17 is taken"
grep -q "depends on libc6 (>= " old.txt || { cat old.txt; fail "the glibc that is needed is not named"; }
$dpkg --purge gpttrain >/dev/null
mv kept debian/var/lib/dpkg/status
(cd debian && find . ! -type d | sort) >before.txt
$dpkg --install "$deb" >dpkg.txt 2>&1 || { cat dpkg.txt; fail "dpkg --install"; }
[ -z "$($dpkg --verify gpttrain)" ] || fail "files that differ from the package's checksums"
within "$work/debian" /usr/bin/gpttrain --version >version.txt || fail "--version"
grep -q "Open MPI" version.txt || { cat version.txt; fail "--version does not name its MPI"; }
trains "$work/debian" /usr/bin/gpttrain
gzip -dc debian/usr/share/man/man1/gpttrain.1.gz >manual.txt && grep -q '^\.TH GPTTRAIN 1' manual.txt || fail "no manual page"
bash -c '. debian/usr/share/bash-completion/completions/gpttrain && complete -p gpttrain' >/dev/null || fail "no completion"
grep -q '^#compdef gpttrain' debian/usr/share/zsh/vendor-completions/_gpttrain || fail "no completion of zsh"
grep -q '^complete ' debian/usr/share/fish/vendor_completions.d/gpttrain.fish || fail "no completion of fish"
rm -rf debian/tmp/runs
$dpkg --purge gpttrain >/dev/null
(cd debian && find . ! -type d ! -path './var/lib/dpkg/*' ! -path './tmp/*' | sort) >after.txt
left=$(grep -v '^\./var/lib/dpkg/' before.txt | comm -13 - after.txt)
[ -z "$left" ] || fail "dpkg --purge leaves $left"
echo "Debian package: $(stat -c %s "$deb") bytes"

# The wheel, by the pip that Debian's ensurepip has.
python=$(readlink -f /usr/bin/python3)
name=$(basename "$python")
pip=$(ls /usr/share/python-wheels/pip-*.whl 2>/dev/null) && dpkg-query -W "$name-minimal" "lib$name-stdlib" >/dev/null 2>&1 ||
  skip "no Debian Python with pip for the wheel (python3-venv); the Debian package passed"
bare wheel
put wheel "$name-minimal" "lib$name-minimal" "lib$name-stdlib"
ldd "$python" "/usr/lib/$name"/lib-dynload/*.so | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u >libraries.txt
tar -chf - -T libraries.txt 2>/dev/null | tar -xf - -C wheel
cp "$pip" "$wheel" wheel/tmp/
within "$work/wheel" "$python" "/tmp/$(basename "$pip")/pip" install --no-index --no-cache-dir --root-user-action ignore \
  --break-system-packages "/tmp/$(basename "$wheel")" >pip.txt 2>&1 || { cat pip.txt; fail "pip install"; }
within "$work/wheel" gpttrain --version >version.txt && grep -q "Open MPI" version.txt || fail "the command of the wheel"
site=$(cd wheel && ls -d usr/local/lib/python3*/*-packages/gpttrain)
rm -rf wheel/usr/bin/python* wheel/usr/lib/python*  # the program needs none
trains "$work/wheel" "/$site/bin/gpttrain"
[ -e wheel/usr/local/share/man/man1/gpttrain.1 ] || fail "no manual page in the wheel"
[ -e wheel/usr/local/share/bash-completion/completions/gpttrain ] || fail "no completion in the wheel"
echo "wheel: $(stat -c %s "$wheel") bytes; both train where only glibc is installed"
