#!/usr/bin/env bash
# Two hosts with different token files under one name, then with different builds: refused before the first step with
# one message that names hosts and difference, exit code 2.
#   tests/hosts/alike.sh GPTTRAIN
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_job 2 "$@"

for k in 1 2; do for i in $(seq 400); do echo "line $i of text $k and $((i * i % 97)) more"; done >text$k; done
"$gpttrain" tokenizer train --input text1 text2 --vocab 300 --output tok.model >out.txt 2>&1 || fail "tokenizer"
for k in 1 2; do
  "$gpttrain" data prepare --input text$k --tokenizer tok.model --output data$k >out.txt 2>&1 || fail "data prepare"
  for file in data$k.*; do on node$k cp "$file" "$rig_local/data.${file##*.}"; done
done
train() {  # PROGRAM DATA NAME
  # shellcheck disable=SC2086
  on node1 "$1" $rig_model --model.layers 2 --data.train "$2" --train.steps 2 --pp 2 --launch.hostfile hosts.txt \
    --log.name "$3" >out.txt 2>&1
}
refused() {  # WHAT CODE
  [ "$2" = 2 ] || fail "$1: exit code $2"
  [ "$(grep -c 'ranks differ, so nothing was started' out.txt)" = 1 ] || fail "$1: not printed once"
  ! grep -q '^step 1/' out.txt || fail "$1: trained"
}
train "$gpttrain" $rig_local/data files
refused "different files" $?
grep -q "$rig_local/data: .* on node1 (rank 0), .* on node2 (rank 1); copy the files" out.txt || fail "which files, where"
grep 'local/data:' out.txt

for k in 1 2; do on node$k cp "$gpttrain" $rig_local/gpttrain; done
hash=$("$gpttrain" --version | sed -n 's/^gpttrain .*(git \([0-9a-f]*\).*/\1/p')
[ -n "$hash" ] && on node2 sed -i "s/$hash/${hash//[0-9]/a}/g" $rig_local/gpttrain
train $rig_local/gpttrain mock builds
refused "different builds" $?
grep -q "program: .*$hash.* on node1 (rank 0), .* on node2 (rank 1); copy one build" out.txt || fail "which builds, where"
grep 'program:' out.txt
train "$gpttrain" mock same || fail "the same build on both"
