#!/usr/bin/env bash
# GEMM algorithm selection on the emulated device, whose cuBLASLt has three algorithms, the second the fastest
# (tests/cuda/emulation/cublaslt.cpp counts the runs).
#   tests/cuda/gemm_plans.sh BUILD/emulated/gpttrain
set -euo pipefail
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"
export HOME=$work/home GPTTRAIN_EMULATED_ALGORITHMS=$work/ran
unset XDG_CACHE_HOME

ranks=threads
train() {  # NAME FLAG...
  local name=$1
  shift
  rm -f ran
  "$program" --model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --train.micro_batch 1 \
    --train.global_batch 2 --train.steps 2 --launch.ranks $ranks --data.train mock --log.tensorboard false \
    --device.kind cuda --log.name "$name" "$@" >"$name.txt" 2>&1 || { cat "$name.txt"; fail "training $*"; }
  grep '"type": "step"' "runs/$name/log.jsonl" | sed 's/.*"loss": \([0-9.e-]*\).*/\1/' >"$name.losses"
}
ran() { read -r first second third < <(awk '{a += $1; b += $2; c += $3} END {print a, b, c}' ran); }
expect_note() { grep -q "device.gemm_plans: .* is not used: $2" "$1.txt" || { cat "$1.txt"; fail "$1 does not print: $2"; }; }
silent() { ! grep -q "device.gemm_plans" "$1.txt" || { cat "$1.txt"; fail "$1 complains"; }; }

train first
ran
[ "$first" -gt 50 ] && [ "$second $third" = "0 0" ] || fail "without options: algorithms ran $(cat ran)"
[ ! -e home ] || fail "a file was written without a request"
products=$first

train timed --device.gemm_tune auto
silent timed
ran
plans=$(ls home/.cache/gpttrain/gemm-plans-emulated-device-*.txt)
keys=$(grep -c " | 1 " "$plans")
# GEMMs with a fused bias gradient (form 5) are timed against plain ones (form 0) followed by a separate sum: two
# medians.
both=$(grep -c " form | 5 " "$plans")
kinds=$((keys - both))  # GEMM keys of this run
[ "$kinds" -gt 5 ] && [ "$both" -gt 0 ] && [ "$(grep -c ' | ' "$plans")" = "$((keys + both))" ] ||
  { cat "$plans"; fail "not all chose the fastest"; }
[ "$first $second $third" = "$((13 * keys)) $((13 * keys + 26 * both + kinds + products)) $((13 * keys))" ] ||
  fail "timing ran $(cat ran) for $keys GEMMs, $both of them in two ways"
grep -q "$((keys + both)) GEMM shapes timed" timed.txt || { cat timed.txt; fail "the run does not report what it timed"; }
cmp "$plans" runs/timed/gemm-plans-1.txt || fail "the run has no copy of its own"
echo "$keys GEMM shapes were timed once each before the first step, and the fastest is in the file"

cp "$plans" before
train again --device.gemm_tune auto
ran
[ "$first $second $third" = "0 $((kinds + products)) 0" ] || fail "with a file, timed again: $(cat ran)"
cmp -s "$plans" before || fail "the file changed"

# Where fused bias gradients are slow, separate sums are chosen; the plan file records that for later runs.
GPTTRAIN_EMULATED_EPILOGUES=slow_bias_gradients train slow --device.gemm_tune auto --device.gemm_plans sums.txt
[ "$(grep -c ' form | 0 ' sums.txt)" = "$both" ] || { cat sums.txt; fail "slow fused sums are chosen"; }
train behind --device.gemm_plans sums.txt
paste first.losses slow.losses behind.losses | awk '{d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-5 || $2 != $3) exit 1}' ||
  { paste first.losses slow.losses behind.losses; fail "losses with separate sums differ"; }
echo "bias gradients fused or separate, whichever is faster"

# The same for GELU with 16-bit outputs: forward (3) a GEMM with its bias (1); backward (6) the GELU gradient fused
# (4) or nothing (0).
forms() {  # NAME FORWARD BACKWARD: number of entries with these forms among those epilogues
  local n
  n=$(grep -c ' epilogue [36] .* form | ' "$1")
  [ "$n" -gt 1 ] && [ "$(grep -c " epilogue 3 .* form | $2 \| epilogue 6 .* form | $3 " "$1")" = "$n" ] ||
    { cat "$1"; fail "$1: not forms $2 and $3"; }
}
train halves --amp O2 --device.gemm_tune auto --device.gemm_plans halves.plans
forms halves.plans 3 6
GPTTRAIN_EMULATED_EPILOGUES=slow_bias_gradients train halves2 --amp O2 --device.gemm_tune auto --device.gemm_plans sums.plans
forms sums.plans 3 4
GPTTRAIN_EMULATED_EPILOGUES=slow_gelu train halves3 --amp O2 --device.gemm_tune auto --device.gemm_plans gelu.plans
forms gelu.plans 1 0
train halves4 --amp O2 --device.gemm_plans gelu.plans
cmp -s halves3.losses halves4.losses || fail "losses with the forms of a file differ from those when they were timed"
cmp -s halves.losses halves3.losses && fail "an unfused GELU, whose input is rounded, has equal losses"
paste halves.losses halves2.losses halves3.losses |
  awk '{for (i = 2; i <= 3; ++i) {d = ($1 - $i) / $1; if (d < 0) d = -d; if (d > 1e-2) exit 1}}' ||
  { paste halves.losses halves2.losses halves3.losses; fail "losses of other forms are too far"; }
echo "GELU and its gradient fused or separate, whichever is faster"

# An algorithm that is suggested and then refused is not chosen; a form that is refused entirely runs unfused.
GPTTRAIN_EMULATED_REFUSES=1 train without --device.gemm_tune auto --device.gemm_plans without.plans
[ "$(grep -c ' | 2 2 ' without.plans)" = "$keys" ] && [ "$(grep -c ' | ' without.plans)" = "$((keys + both))" ] ||
  { cat without.plans; fail "a refused algorithm prevents the choice"; }
ran
[ "$first $second" = "$((13 * keys)) 0" ] || fail "a refused algorithm ran: $(cat ran)"
GPTTRAIN_EMULATED_EPILOGUES=none train pieces
GPTTRAIN_EMULATED_EPILOGUES=refused train refused
GPTTRAIN_EMULATED_EPILOGUES=refused train refused2 --device.gemm_tune auto --device.gemm_plans refused.plans
grep -q ' form | 0 ' refused.plans && ! grep -v ' form | 0 ' refused.plans | grep -q ' epilogue [1-9]\| form \|inf' ||
  { cat refused.plans; fail "forms that were refused are in the file"; }
for name in refused refused2; do
  cmp pieces.losses $name.losses || fail "losses with forms refused at run time differ from those without such forms"
done

GPTTRAIN_EMULATED_REFUSES=0 "$program" --model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 \
  --data.train mock --log.tensorboard false --train.steps 1 --train.global_batch 1 --launch.ranks threads --device.kind cuda \
  >nothing.txt 2>&1 && fail "a run without GEMM algorithms"
grep -q "no algorithm for m .*: CUBLAS_STATUS_NOT_SUPPORTED" nothing.txt || { cat nothing.txt; fail "the status of cuBLASLt is not printed"; }
echo "a suggested and then refused algorithm is replaced, or its status is in the error"

# Fast accumulation (half the time here): for FP8 GEMMs of the forward pass (type 28 alone), unless disabled.
fp8="--amp O2 --precision.fp8 current --model.hidden 64 --model.heads 4 --model.seq 16 --device.gemm_tune auto"
# shellcheck disable=SC2086
train fast $fp8 --device.gemm_plans fast.plans
# shellcheck disable=SC2086
train exact $fp8 --device.gemm_plans exact.plans --precision.fp8_fast_accum false
forward=$(grep -c ' types 28 ' fast.plans) backward=$(grep -c ' types \(28x29\|29x28\) ' fast.plans)
[ "$forward" -gt 1 ] && [ "$backward" -gt 1 ] && [ "$(grep -c ' fast ' fast.plans)" = "$forward" ] &&
  [ "$(grep -c ' types 28 .* fast .* | 1 0.5 ' fast.plans)" = "$forward" ] || { cat fast.plans; fail "fast accumulation"; }
[ "$(sed 's/ fast / /; s/ | 1 0.5 / | 1 1 /' fast.plans)" = "$(cat exact.plans)" ] || { diff fast.plans exact.plans; fail "exact accumulation"; }
grep -q "no fast accumulation" exact.txt || { cat exact.txt; fail "a run without fast accumulation does not report it"; }
cmp fast.losses exact.losses || fail "losses differ although the emulation accumulates exactly"
echo "fast accumulation in forward FP8 GEMMs only, and none if disabled"

sed 's/ | 1 \([0-9.e-]*\) \(.\{16\}\)0000000000000001/ | 2 \1 \20000000000000002/' "$plans" >plans.txt
train fixed --device.gemm_plans plans.txt --dp 2
silent fixed
ran
[ "$first $second" = "0 0" ] && [ "$third" -ge "$products" ] || fail "not as in the file: $(cat ran)"
echo "a plan file decides on every start, for all ranks"

# Ranks as processes: the first times for all. A resumed run uses its own copy, whatever the cache contains.
ranks=processes
mv "$plans" aside.txt
train processes --device.gemm_tune auto --dp 2 --train.steps 3
ran
fewer=$(grep -c ' | 1 ' "$plans")  # one microbatch: no accumulation
[ "$first $third" = "$((13 * fewer)) $((13 * fewer))" ] && [ "$fewer" -gt 5 ] || fail "2 processes timed: $(cat ran)"
ranks=threads
train threads --device.gemm_tune auto --dp 2 --train.steps 3
cmp processes.losses threads.losses || fail "losses of timing processes and threads differ"
train resumed --device.gemm_tune auto
sed -i 's/ | 1 \([0-9.e-]*\) \(.\{16\}\)0000000000000001/ | 2 \1 \20000000000000002/' runs/resumed/gemm-plans-1.txt
train resumed --device.gemm_tune auto --train.steps 4
ran
[ "$first $second" = "0 0" ] && [ "$third" -gt 0 ] || fail "a resumed run used other plans than its own: $(cat ran)"
echo "torn" >runs/resumed/gemm-plans-1.txt
train resumed --device.gemm_tune auto --train.steps 6
grep -q "gemm-plans-1.txt is not used: its first line" resumed.txt || { cat resumed.txt; fail "a truncated copy is not reported"; }
mv aside.txt "$plans"
echo "one rank times for all, threads or processes, and a resumed run uses its own table"

bad() {  # NAME TEXT: plans.txt in its present state is rejected, with and without timing
  train "$1" --device.gemm_plans plans.txt
  expect_note "$1" "$2"
  ran
  [ "$first $second $third" = "$products 0 0" ] || fail "$1: $(cat ran)"
}
cp plans.txt good.txt
head -n -1 good.txt >plans.txt
bad endless "its end is missing"
echo "my diary" >plans.txt
bad diary "its first line"
rm plans.txt
bad absent "there is no such file"
sed '4s/.$/x/' good.txt >plans.txt
bad torn "line 4 is broken"
sed '2s/emulated device/NVIDIA H200/' good.txt >plans.txt
bad foreign "it was made for NVIDIA H200"
cp plans.txt kept
train foreign2 --device.gemm_plans plans.txt --device.gemm_tune auto
expect_note foreign2 "it was made for NVIDIA H200.*; what is timed now is not kept"
cmp -s plans.txt kept || fail "another device's file was overwritten"
# An algorithm unknown to this library, as after an update under the same version: falls back to its first suggestion.
sed 's/656d756c61746564/0000000000000000/' good.txt >plans.txt
train unknown --device.gemm_plans plans.txt
ran
[ "$first $second $third" = "$products 0 0" ] || fail "unknown algorithms: $(cat ran)"
echo "broken, foreign, unknown or missing files are ignored with a warning"

for name in timed again torn foreign2 unknown; do
  cmp -s first.losses $name.losses || fail "losses of $name differ"
done

# TF32 only on request: losses differ slightly; its algorithms are timed separately; 16-bit GEMMs do not change.
train tf32 --precision.tf32 true
cmp -s first.losses tf32.losses && fail "--precision.tf32 changes nothing"
paste first.losses tf32.losses | awk '{d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-3) exit 1}' ||
  { paste first.losses tf32.losses; fail "losses of TF32 are too far"; }
grep -q "FP32 GEMMs in TF32" tf32.txt || { cat tf32.txt; fail "a run in TF32 does not report it"; }
train aside --precision.tf32 true --device.gemm_plans "$plans"
expect_note aside "it was made for"
train half --amp O2
train halftf32 --amp O2 --precision.tf32 true
cmp -s half.losses halftf32.losses || fail "TF32 changes 16-bit GEMMs"
"$program" --precision.tf32 true --device.kind cpu >refused.txt 2>&1 && fail "TF32 on a CPU"
grep -q "precision.tf32" refused.txt || { cat refused.txt; fail "the refusal prints something else"; }
echo "TF32 is used where requested, and nowhere else"

"$program" verify --on here --device.gemm_tune auto --tp 2 --device.kind cuda >refused.txt 2>&1 && fail "processes that time"
grep -q "verify times nothing" refused.txt || { cat refused.txt; fail "the refusal prints something else"; }
echo "verify with processes, each of which would time, is refused"
