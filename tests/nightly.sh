#!/usr/bin/env bash
# Suites that are too long for every change. One line per goal: figure and time; exits with 1 when one failed.
#   tests/nightly.sh                      builds preset cpu, runs every goal
#   tests/nightly.sh matrix mpi           only these
#   tests/nightly.sh reliability          goals with kills, full disks and flipped bits at full size; R12: only that one
#   tests/nightly.sh asan tsan            the sanitizers, in separate builds (build/asan, build/tsan)
#   tests/nightly.sh guided               the fuzz targets under libFuzzer (build/fuzz); GPT_GUIDED_SECONDS=600 each
#   tests/nightly.sh coverage             line coverage of each parser by the fuzz targets (build/coverage)
#   GPT_BUILD=build/dev tests/nightly.sh  uses an existing build
#   GPT_TEST_SEED=7                       seed of random layouts and inputs (default: the date)
#   GPT_NIGHTLY_SAMPLE=50                 number of layouts drawn from a matrix (default: all)
# To add a goal: a line `goal NAME 'PATTERN' COMMAND…` below; the last line of output that matches PATTERN is its
# figure.
set -uo pipefail
cd "$(dirname "$0")/.."
seed=${GPT_TEST_SEED:-$(date +%Y%m%d)}
sample=${GPT_NIGHTLY_SAMPLE:-0}
build=${GPT_BUILD:-}
tests/readers/setup.sh || echo "nightly: some Python readers are missing; tests that need them are skipped"
if [ -z "$build" ]; then
  build=build/cpu
  cmake --preset cpu >/dev/null && cmake --build --preset cpu -j "$(nproc)" >/dev/null ||
    { echo "nightly: the build failed"; exit 1; }
fi
gpttrain=$build/gpttrain
logs=$build/nightly
mkdir -p "$logs"
wanted=" $* "
failed=0

# goal NAME PATTERN COMMAND…
goal() {
  local name=$1 pattern=$2 log=$logs/$1.log begin=$SECONDS figure
  shift 2
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
  local verdict=ok
  "$@" >"$log" 2>&1
  case $? in 0) ;; 77) verdict=SKIP ;; *) verdict=FAILED ;; esac  # 77: tests/support/skip.h
  figure=$(grep -E "$pattern" "$log" | tail -1)
  [ -n "$figure" ] || verdict=FAILED
  [ $verdict != FAILED ] || { failed=1; figure="$figure (see $log)"; }
  printf '%-7s %-14s %5d s  %s\n' "$verdict" "$name" $((SECONDS - begin)) "$figure"
}

# Verifies each layout of standard input; stops at the first failure, otherwise prints their number.
each() {
  local n=0
  while IFS= read -r words; do
    [ -n "$words" ] || continue
    # shellcheck disable=SC2086
    "$gpttrain" verify $words </dev/null || { echo "failed: gpttrain verify $words"; return 1; }
    n=$((n + 1))
  done
  echo "$n layouts equal one rank"
}

# sanitized PRESET RANKS: builds the preset, runs each of its tests in a process of its own, then every subcommand of
# the binary. A finding ends its process, so findings are counted in the log of all tests.
sanitized() {
  local preset=$1 ranks=$2 log=build/$1/Testing/Temporary/LastTest.log cases walk=0 findings
  cmake --preset "$preset" && cmake --build --preset "$preset" -j "$(nproc)" || return 1
  ctest --preset "$preset" -LE house -j 2 && tests/sanitizers/walk.sh "build/$preset/gpttrain" "$ranks" || walk=1
  cases=$(grep -c '^Test Passed' "$log")
  findings=$(grep -cE 'ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:' "$log")
  echo "$cases cases clean, $(grep -c '^Test Failed' "$log") failed, $findings findings"
  return $walk
}

# Each target on fifty times the inputs of a normal run, with another seed; GPT_FUZZ_FACTOR changes the factor.
fuzzed() {
  local rc=0
  env GPT_TEST_SEED="$seed" GPT_FUZZ_FACTOR="${GPT_FUZZ_FACTOR:-50}" "$build/test_fuzz" || rc=1
  awk '/inputs, .* no finding/ {n += $2; t++} END {print n " inputs, " t " targets without a finding"}' "$logs/fuzz.log"
  return $rc
}

matrix="$gpttrain verify --config configs/tiny.json --device.kind cpu --matrix --sample $sample --train.seed $seed"
goal matrix 'equal, .* different' $matrix
goal matrix-untied 'equal, .* different' $matrix --model.tied false
goal matrix-uneven 'equal, .* different' $matrix --model.layers 7 --model.heads 6 --model.hidden 60 \
  --parallel.partition uniform
# 120 layouts of every family at a tiny size in FP32, with what sets it apart: shared KV heads, heads of another width,
# windows, blocks without them. Lines of standard input: FAMILY FLAGS…
families() {
  local family flags rc=0
  while read -r family flags; do
    echo "== $family $flags"
    # shellcheck disable=SC2086
    "$gpttrain" verify --config configs/tiny.json --model.layers 4 --device.kind cpu --model.arch "$family" $flags \
      --amp O0 --matrix --sample "${GPT_NIGHTLY_SAMPLE:-120}" --train.seed "$seed" </dev/null || rc=1
  done
  return $rc
}
# Sums up their reports: layouts, and the largest error of a gradient.
families_sum() {
  families 2>&1 | tee "$logs/families-layouts.log" | awk '
    function before(word, k) {for (k = 2; k <= NF; ++k) if (index($k, word) == 1) return $(k - 1); return 0}
    function behind(word, k) {for (k = 1; k < NF; ++k) if ($k == word) return $(k + 1) + 0; return 0}
    /^==/ {++n}
    / reference runs: / {equal += before("equal"); wrong += before("different")}
    /^largest relative errors/ {g = behind("gradient"); if (g > most) most = g}
    END {
      print n " families, " equal " layouts equal, " wrong + 0 " different; largest error of a gradient " most
      exit !(equal > 0 && wrong == 0)
    }'
}
goal families 'families, .* different' families_sum <<'FAMILIES'
gpt2
llama --model.kv_heads 2 --model.rope_scaling llama3 --model.rope_factor 4
mistral --model.kv_heads 2 --model.window 12
qwen2 --model.kv_heads 2 --model.window 12 --model.global_first 1
qwen3 --model.kv_heads 1 --model.head_dim 32
gemma2 --model.kv_heads 2 --model.head_dim 32 --model.window 12
gemma3 --model.kv_heads 1 --model.window 12 --model.global_every 3
olmo2 --model.kv_heads 2
mixtral --model.kv_heads 2 --model.moe_experts 5 --model.moe_balance 0.02 --precision.amp O0
olmoe --model.moe_experts 6 --model.moe_top_k 3 --precision.amp O0
dots1 --model.ffn 48 --model.moe_experts 8 --model.moe_groups 4 --model.moe_top_groups 2 --model.moe_bias_rate 0.003 --model.moe_dense_blocks 0 --precision.amp O0
qwen2_moe --model.ffn 48 --model.moe_experts 6 --model.moe_balance 0.02 --precision.amp O0
bert
FAMILIES
goal random 'layout matrix:' env GPT_TEST_SEED="$seed" GPT_TEST_LAYOUTS=600 "$build/test_launch" \
  "random layouts train as one rank*"
goal settings 'random settings:' env GPT_TEST_SEED="$seed" GPT_TEST_RUNS=1000 "$build/test_launch" \
  "runs of random settings*"

shipped() {
  local c layout
  for c in demo gpt2-124m gpt2-355m gpt2-774m gpt2-1558m; do
    local tp=2
    [ $c != gpt2-1558m ] || tp=5  # 25 heads
    for layout in "--tp $tp --pp 2 --dp 2" "--pp 4 --dp 2 --parallel.recompute full" \
      "--pp 2 --vpp 2 --parallel.schedule interleaved --dp 3"; do
      echo "--config configs/$c.json --device.kind cpu --data.train mock --train.global_batch 0" \
        "--train.micro_batch 2 --train.grad_accum 2 $layout"
    done
  done
}
goal shipped 'layouts equal' each < <(shipped)

goal mpi 'layouts equal' each <<'LAYOUTS'
--config configs/tiny.json --device.kind cpu --on here --tp 2
--config configs/tiny.json --device.kind cpu --on here --pp 2 --parallel.schedule zb-h1
--config configs/tiny.json --device.kind cpu --on here --dp 4
--config configs/tiny.json --device.kind cpu --on here --tp 2 --pp 2 --dp 2
--config configs/tiny.json --device.kind cpu --on here --tp 4 --pp 2 --model.tied false
LAYOUTS

# A reliability goal at full size: every test with its tag; its figures are the lines that begin with the tag. A MISSED
# figure, a failing test and a goal without a figure are failures; SKIP gives the reason.
figures() {
  local tag=$1 suite rc=0
  for suite in checkpoint launch reliability; do
    "$build/test_$suite" "[$tag]" >"$logs/$tag-$suite.log" 2>&1 || [ $? = 77 ] || rc=1
    cat "$logs/$tag-$suite.log"
  done
  return $rc
}
reliability() {
  local tag=$1 id=$1 begin=$SECONDS verdict=ok line lines=0
  [ "$wanted" = "  " ] || [[ $wanted == *" $tag "* ]] || [[ $wanted == *" reliability "* ]] || return 0
  env GPT_TEST_FULL=1 GPT_TEST_SEED="$seed" bash -c "$(declare -f figures); build=$build; logs=$logs; figures $tag" \
    >"$logs/$tag.log" 2>&1 || verdict=FAILED
  while IFS= read -r line; do
    lines=$((lines + 1))
    local this=$verdict
    [[ $line != *SKIP* ]] || this=SKIP
    [[ $line != *MISSED* ]] || this=FAILED
    [ $this != FAILED ] || failed=1
    printf '%-7s %-14s %5d s  %s\n' "$this" "$id" $((SECONDS - begin)) "${line#"$id": }"
  done < <(grep -E "^$id: " "$logs/$tag.log")
  [ $lines -gt 0 ] && return 0
  failed=1
  printf '%-7s %-14s %5d s  %s\n' FAILED "$id" $((SECONDS - begin)) "no figure (see $logs/$tag.log)"
}
for tag in R01 R03 R05 R09 R11 R12 R14 R15 R16 R17 R18 R22 R23 R25 R28 R30; do reliability $tag; done

# Killed, stopped, preempted and restarted runs of the normal suite, GPT_FAULT_ROUNDS times each (default 3).
faults() {
  local k rounds=${GPT_FAULT_ROUNDS:-3}
  for ((k = 1; k <= rounds; k++)); do
    "$build/test_reliability" "[R11],[R12],[R15],[R28]" && "$build/test_launch" "[R14],[R15],[R28]" ||
      { echo "failed in round $k"; return 1; }
  done
  echo "$rounds rounds of killed, stopped, preempted and restarted runs"
}
goal faults 'rounds of killed' faults

# ---- checkpoint goals ----
# case_of PROGRAM NAME [VARIABLE=VALUE…]: runs a test case at the size that the variables set. No comma in NAME.
case_of() {
  local program=$1 name=$2
  shift 2
  env "$@" "$build/$program" "$name"
}
goal ckpt-damage 'damage: ' case_of test_checkpoint "every changed byte of every file of a checkpoint is found before use" \
  GPT_TEST_FLIP_KB="${GPT_NIGHTLY_FLIP_KB:-200}"
goal ckpt-reshard 'reshard: ' case_of test_checkpoint \
  "any layout reads what any other wrote*" GPT_TEST_PAIRS=all
goal ckpt-resume 'resume: ' case_of test_launch \
  "a run that stops and resumes is bitwise*" GPT_TEST_LAYOUTS=50 GPT_TEST_STEPS=20
goal ckpt-export 'export: ' case_of test_launch \
  "exported bytes have one SHA-256 whichever layout wrote the checkpoint" GPT_TEST_LAYOUTS=50
goal ckpt-import 'memory beyond' case_of test_launch \
  "import and export hold one tensor at a time*" GPT_TEST_IMPORT=124m
goal import-7b 'import: largest tensor|SKIPPED' case_of test_launch \
  "a sharded Llama is imported and exported under a memory limit*" GPT_TEST_IMPORT=7b
goal ckpt-hf 'largest difference|SKIPPED' case_of test_launch \
  "transformers loads an exported folder unchanged and predicts the same"
# ---- end of checkpoint goals ----
goal tokenizers '^tokenizers: |SKIPPED' case_of test_launch "ids of *equal those of t*" GPT_TEST_FULL=1
goal characters 'validation loss|SKIPPED' tests/bench/characters.sh "$gpttrain"
goal megatron '^megatron: |SKIPPED' case_of test_launch "losses\, gradient norms and gradients equal Megatron-core*" \
  GPT_TEST_FULL=1
# R20: line coverage of the parsers by the fuzz targets, with gcov in a separate build (build/coverage). The goal is
# 95 % of the lines of each; parsers below it are named.
covered() {
  local dir=build/coverage parsers file data rc=0
  parsers="checkpoint/format/index_file.cpp checkpoint/format/manifest.cpp checkpoint/format/state_json.cpp checkpoint/weights/safetensors.cpp
    checkpoint/format/h5_gate.cpp checkpoint/format/h5_walk.cpp checkpoint/weights/llmc.cpp kernels/core/json.cpp parallel/pipeline/text.cpp
    launch/tools/translate/deepspeed_file.cpp data/tokens/token_file.cpp data/tokenizer/model_walk.cpp"
  cmake -S . -B $dir -G Ninja -DGPT_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="--coverage -DGPT_COVERAGE" \
    -DCMAKE_EXE_LINKER_FLAGS=--coverage && cmake --build $dir --target test_fuzz -j "$(nproc)" || return 1
  find $dir -name '*.gcda' -delete
  env GPT_FUZZ_FACTOR="${GPT_FUZZ_FACTOR:-1}" "$dir/test_fuzz" || rc=1
  for file in $parsers; do
    data=$(find $dir -path "*/${file#*/}.gcda" -path "*/${file%%/*}/*" | head -1)
    [ -n "$data" ] || { echo "$file was not run"; rc=1; continue; }
    gcov -n "$data" 2>/dev/null | grep -A1 -E "^File '(.*/)?$file'\$" |
      awk -v f="$file" -F'[:% ]' '/Lines executed/ {print "lines " $3 " % " f " of " $NF}'
  done | tee "$logs/lines.txt"
  awk '/was not run/ {bad = bad " " $1; n++}
    /^lines/ {n++; if ($2 < 95) bad = bad " " $4 " " $2 " %"; else good++}
    END {print good + 0 " of " n " parsers have 95 % of their lines run" (bad == "" ? "" : "; below:" bad); exit good < n}' \
    "$logs/lines.txt" || rc=1
  return $rc
}
goal coverage 'parsers have' covered
goal asan 'findings' sanitized asan processes
goal tsan 'findings' sanitized tsan threads
goal fuzz 'inputs' fuzzed
# The emulated CUDA device: kernels, layouts, graphs, GEMM tuning, races and errors, all cases of each.
emulation() {
  [ -x "$build/emulated/gpttrain" ] || { echo "SKIPPED: this build has no CUDA backend"; return 77; }
  env GPT_TEST_FULL=1 ctest --test-dir "$build" -R '^cuda:'
}
goal emulation 'tests passed|SKIPPED' emulation

# Every test on a processor that has AVX2 at most (build/avx2): the product's kernels and oneDNN's.
on_avx2() {
  cmake -S . -B build/avx2 -G Ninja -DGPT_CUDA=OFF -DGPT_MAX_ISA=kAvx2 && cmake --build build/avx2 -j "$(nproc)" || return 1
  env ONEDNN_MAX_CPU_ISA=AVX2 ctest --test-dir build/avx2 -LE house -j 4 --output-on-failure
}
goal avx2 'tests passed' on_avx2

# Each target under libFuzzer for GPT_GUIDED_SECONDS; the corpus stays in build/fuzz/corpus for the next night.
guided() {
  local name names log n=0 inputs=0
  launch/setup.sh --fuzz || { echo "SKIPPED: clang could not be installed"; return 77; }
  cmake --preset fuzz && cmake --build --preset fuzz -j "$(nproc)" || return 1
  names=$(build/fuzz/fuzz_guided 2>&1 | sed -n 's/.*NAME one of //p')
  for name in $names; do
    log=$logs/guided-$name.log
    build/fuzz/fuzz_guided "$name" "build/fuzz/corpus/$name" -max_total_time="${GPT_GUIDED_SECONDS:-60}" -seed="$seed" \
      -max_len=65536 -timeout=60 -rss_limit_mb=3072 -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" \
      >"$log" 2>&1 || { tail -50 "$log"; echo "finding of $name: build/fuzz/fuzz-$name.input"; return 1; }
    inputs=$((inputs + $(sed -n 's/^stat::number_of_executed_units: *//p' "$log")))
    n=$((n + 1))
  done
  echo "$inputs guided inputs, $n targets without a finding"
}
goal guided 'guided inputs|finding of|SKIPPED' guided
goal hosts 'events, next step|SKIPPED' tests/hosts/punish.sh "$gpttrain" "${GPT_PUNISH_MINUTES:-30}" "$seed"
goal aarch64 'steps trained on aarch64' tests/aarch64/run.sh
goal slurm 'a batch job|SKIPPED' tests/hosts/slurm.sh "$gpttrain"
# Faults injected into a copy of the tree (build/mutation): each must be caught by a test.
goal mutation 'faults caught' tests/mutation/run.py --limit-s "${GPT_MUTATION_LIMIT_S:-7200}"
exit $failed
