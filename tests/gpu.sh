#!/usr/bin/env bash
# Goals that need an NVIDIA GPU. Prints one line per goal: verdict, name, seconds, figure.
#   tests/gpu.sh                       every goal, with the program of build/cuda or build/cpu
#   tests/gpu.sh parity layouts        only these
#   tests/gpu.sh pack FOLDER           the portable bundle with this script and the kernel tests, for a machine where
#                                      nothing is installed: copy FOLDER there, then run FOLDER/tests/gpu.sh
# Verdicts: ok, FAILED, MISSED (correct, but slower than required on an H200), PART (correct as far as time or files
# allowed), SKIP (not possible here). Exits with 1 when a goal failed, else with 3 when one missed.
#   GPT_BUILD=build/dev                uses an existing build
#   GPT_GPU_LIMIT=300                  time limit of one command in seconds
#   GPT_GPU_BUDGET=570                 time limit of all commands in seconds; goals beyond it are skipped
#   GPT_GPU_LOGS=gpu-logs              folder of each goal's output, records, step logs, plans, measured peaks
#   GPT_GPU_OUT=FOLDER                 after each goal archives all of that in FOLDER/gpu-logs.tgz
#   GPT_GPU_PEER=COMMAND               a further baseline beside PyTorch for the goal peer
#   GPT_GPU_NCCL=FILE                  the NCCL of the goal backends
#   GPT_GPU_TOKENS=PREFIX              real text for the goal text: PREFIX.bin and PREFIX.idx of `gpttrain data prepare`,
#                                      65,536 tokens for each of GPT_GPU_STEPS steps (100), and the tokenizer PREFIX.model
#   GPT_LLMC_DIR=FOLDER                gpt2_124M.bin and gpt2_124M_debug_state.bin of llm.c's train_gpt2.py, for llmc
#   GPT_GPU_CASES='parity: gemm*'      the cases of parity, memcheck and racecheck
#   GPT_GPU_JOBS=8                     how many cases memcheck and racecheck run at a time (4)
#   GPT_GPU_SMALL=1                    toy models, stand-ins and the emulated device, to test this script; =floors: held
#                                      to an H200's speed, which toys miss; GPT_GPU_STAND_IN=1e9: peaks for the toys
#
# For GPUs rented by the minute: commands of less than ten minutes each (estimates), the most informative first.
#   tests/gpu.sh device parity layouts precision families             5 minutes    correctness
#   tests/gpu.sh graphs repeat resume losses                          4
#   tests/gpu.sh ceilings speed small-batch fp8 ops                   7            speed
#   tests/gpu.sh ceilings choices                                     5            the defaults
#   tests/gpu.sh scale peer                                           7            correctness at real sizes; PyTorch
#   tests/gpu.sh backends llmc text                                   4
#   GPT_GPU_LIMIT=270 tests/gpu.sh memcheck racecheck                 9
# shellcheck disable=SC2086,SC2046,SC2016,SC2015,SC2317 # options are words of one string; goals are called by name
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
limit=${GPT_GPU_LIMIT:-300}
budget=${GPT_GPU_BUDGET:-1000000}
small=${GPT_GPU_SMALL:-}
goals="device parity layouts precision families graphs repeat scale ceilings speed small-batch fp8 ops choices peer backends"
goals+=" losses resume llmc text memcheck racecheck"

find_programs() {
  local folder
  for folder in ${GPT_BUILD:+"$GPT_BUILD"} "$root/bin" "$root/build/cuda" "$root/build/cpu"; do
    [ -x "$folder/gpttrain" ] || continue
    gpttrain=$(realpath "$folder/gpttrain") kernel_tests=$(realpath -m "$folder/test_kernels")
    llmc_tests=$(realpath -m "$folder/test_llmc")
    return 0
  done
  echo "gpu: no gpttrain in $root/bin, build/cuda or build/cpu: cmake --workflow --preset cuda"
  exit 2
}

# pack FOLDER: runs `cmake --install` and adds what this script needs besides the trainer.
pack() {
  local build=${GPT_BUILD:-$root/build/cpu} folder=$1 library program
  [ -f "$build/libgpttrain_cuda.so" ] || { echo "gpu: $build has no CUDA backend"; return 2; }
  if grep -qa 'this build is without cuDNN' "$build/libgpttrain_cuda.so"; then
    echo "gpu: $build/libgpttrain_cuda.so was built without cuDNN, so its speed would be that of our own attention:" \
      "launch/cudnn_frontend.sh, then configure and build again"
    return 2
  fi
  cmake --install "$build" --prefix "$folder" >/dev/null || return 1
  mkdir -p "$folder/tests/bench" "$folder/tests/golden" && cp "$root/tests/gpu.sh" "$folder/tests/" &&
    cp "$root"/tests/bench/{torch_gpt2.py,hf_losses.py,gpu_speed.sh} "$folder/tests/bench/" &&
    cp -r "$root/tests/golden/llmc" "$folder/tests/golden/" || return 1
  for program in test_kernels test_llmc; do
    cp "$build/$program" "$folder/bin/" && patchelf --set-rpath '$ORIGIN/../lib' "$folder/bin/$program" || return 1
    strip "$folder/bin/$program"
    while read -r library; do
      [ -e "$folder/lib/$library" ] || { echo "gpu: the bundle lacks $library, which $program needs"; return 1; }
    done < <(readelf -d "$folder/bin/$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
      grep -vE '^(libc|libm|ld-linux.*)\.so')
  done
  du -sh "$folder"
}
[ "${1:-}" != pack ] || { [ $# = 2 ] || { echo "usage: tests/gpu.sh pack FOLDER"; exit 2; }; pack "$2"; exit; }
for name in "$@"; do
  [[ " $goals " == *" $name "* ]] || { echo "gpu: no goal $name; there are: $goals"; exit 2; }
done

find_programs
logs=$(realpath -m "${GPT_GPU_LOGS:-gpu-logs}")
out=${GPT_GPU_OUT:+$(realpath -m "$GPT_GPU_OUT")}
mkdir -p "$logs/runs" ${out:+"$out"}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
if [ -n "$small" ]; then
  export GPTTRAIN_EMULATED_CUDNN=1 XDG_CACHE_HOME=$work/cache
elif [ -z "${XDG_CACHE_HOME:-}${HOME:-}" ]; then
  export XDG_CACHE_HOME=$logs/cache  # measured peaks and GEMM plans persist between commands
fi
cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/gpttrain
wanted=" $* "
failed=0
exec 3>&1

# left [MOST]: seconds left for a command
left() {
  local rest=$((budget - SECONDS)) most=${1:-$limit}
  [ $rest -lt "$most" ] || rest=$most
  echo $((rest > 1 ? rest : 1))
}
fail() { echo "failed: $*"; return 1; }
print_now() {  # prints immediately, for goals that take long
  echo "$*"
  printf '%28s%s\n' "" "$*" >&3
}
trainer() {
  local code=0 most
  most=$(left)
  timeout -k 10 "$most" "$gpttrain" "$@" </dev/null || code=$?
  [ $code != 124 ] || fail "gpttrain ${1:-} was stopped after $most s"
  return $code
}

# Archives all logs in one file.
keep() {
  mkdir -p "$logs/cache"
  cp "$cache"/ceilings-*.json "$cache"/gemm-plans*.txt "$logs/cache/" 2>/dev/null
  [ -z "$out" ] || {
    tar czf "$out/part.tgz" -C "$(dirname "$logs")" "$(basename "$logs")" && mv "$out/part.tgz" "$out/gpu-logs.tgz"
  }
}

# goal NAME COMMAND…: the figure is the last "figure: …", "PART …" or "SKIP …" line of the command's output.
goal() {
  local name=$1 log=$logs/$1.log begin=$SECONDS verdict=ok figure
  shift
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
  if [ $((budget - SECONDS)) -lt 15 ]; then
    printf '%-7s %-12s %5d s  %s\n' SKIP "$name" 0 "the $budget s of GPT_GPU_BUDGET are spent"
    return 0
  fi
  "$@" >"$log" 2>&1 || verdict=FAILED
  figure=$(grep -E '^(figure: |PART |SKIP )' "$log" | tail -1)
  case $verdict$figure in
    ok) verdict=FAILED ;;
    ok"figure: "*MISSED*) verdict=MISSED ;;
    ok[PS]*) verdict=${figure%% *} ;;
  esac
  figure=${figure#* }
  case $verdict in
    FAILED) failed=1 figure="$figure $(grep '^failed: ' "$log" | tail -1) (see $log)" ;;
    MISSED) [ $failed = 1 ] || failed=3 ;;
  esac
  printf '%-7s %-12s %5d s  %s\n' $verdict "$name" $((SECONDS - begin)) "$figure"
  keep
}

# Appends the folders of CUDA libraries in Python wheels to the search path.
add_wheels() {
  local folders
  folders=$(python3 -c 'import glob, site, sys
places = site.getsitepackages() + sys.path + glob.glob("/opt/*/.venv/lib/python3*/site-packages")
found = [d for p in places if p for d in glob.glob(p + "/nvidia/*/lib")]
print(*dict.fromkeys(found), sep=":")' 2>/dev/null)
  [ -z "$folders" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folders"
}
has_device() { grep -qE '^CUDA .*sm_[0-9]+' "$logs/version.txt"; }
has_cudnn() { grep -qE '^cuDNN +(cuDNN 9|emulated)' "$logs/version.txt"; }
ask_version() { timeout -k 10 "$(left 120)" "$gpttrain" --version >"$logs/version.txt" 2>&1; }
line_of() { sed -n "s/^$1 \+//p" "$logs/version.txt" | head -1; }
ask_version
{ has_device && has_cudnn; } || { add_wheels; ask_version; }
has_device || {
  echo "gpu: no device that the CUDA backend supports: $(line_of CUDA) (details: $logs/version.txt; libraries" \
    "were searched in LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-})"
  exit 1
}

device() {
  cat "$logs/version.txt"
  echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
  nvidia-smi 2>/dev/null || [ -n "$small" ] || fail "no nvidia-smi" || return 1
  has_cudnn || { fail "attention would be computed by our own kernels: $(line_of cuDNN)"; return 1; }
  echo "figure: $(line_of CUDA), driver $(line_of 'NVIDIA driver'), $(line_of cuDNN), NCCL $(line_of NCCL)"
}

export GPT_TEST_BACKEND=cuda  # of the cases
cases=${GPT_GPU_CASES:-parity*,segments*,marks*,replay*}
[ -z "$small" ] || cases="parity: every available*,parity: add agrees*,parity: max_abs agrees*,segments: group sums*"
a_gpu_takes_part() {
  timeout -k 10 "$(left 60)" "$kernel_tests" "parity: every available backend takes part" >part.txt 2>&1 &&
    ! grep -q 'SKIPPED IN PART: parity on a GPU' part.txt || { cat part.txt; fail "$kernel_tests finds no GPU"; }
}
parity() {
  a_gpu_takes_part && timeout -k 10 "$(left)" "$kernel_tests" "$cases" | tee parity.txt || return 1
  echo "figure: $(grep 'All tests passed' parity.txt)"
}

# Runs one op case under compute-sanitizer in its own process, for at most two minutes; appends the result to
# results-TOOL. Uses the caller's `until`.
check_case() {  # TOOL NUMBER NAME COMMAND…
  local tool=$1 name=$3 log=$logs/$1/$2.log code=0 word=clean most=120
  shift 3
  [ $((until - SECONDS)) -ge $most ] || most=$((until - SECONDS + 1))
  timeout -k 5 $most "$@" "$kernel_tests" "${name//,/\\,}" </dev/null >"$log" 2>&1 || code=$?
  if grep -q 'Device not supported' "$log"; then
    word=refused
  elif grep -q 'Internal Sanitizer Error' "$log"; then  # racecheck 2025.3 on an H200, in a GEMM
    word=unchecked
  elif [ $code = 124 ] || [ $code = 137 ]; then
    word=slow
  elif [ $code != 0 ] || ! grep -q 'All tests passed' "$log"; then
    word=wrong
  fi
  echo "$word $name ($log)" >>"results-$tool"
}
count() { grep -c "^$2" "results-$1"; }  # TOOL WORD
# compute-sanitizer over the ops, restricted to this program's kernels (those of libraries are slow and raise known
# false alarms). Four cases at a time (GPT_GPU_JOBS) until the time limit. Failed CUDA calls are checked by the ops themselves.
checked() {  # TOOL
  local name n=0 until words checker=(env)
  if [ -z "$small" ]; then
    checker=(compute-sanitizer --tool "$1" --error-exitcode 9 --kernel-name kns=2gt4cuda --report-api-errors no
      --require-cuda-init no)
    PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || { echo "SKIP no compute-sanitizer in PATH"; return 0; }
  fi
  a_gpu_takes_part || return 1
  mkdir -p "$logs/$1" && : >"results-$1"
  until=$((SECONDS + $(left)))
  # Without a GPU there is nothing to check.
  "$kernel_tests" "$cases" --list-test-names-only |
    grep -vE 'every available backend|oneDNN|every op has|the comparison detects|two seeds' >"cases-$1"
  while read -r name; do
    while [ "$(jobs -rp | wc -l)" -ge "${GPT_GPU_JOBS:-4}" ]; do wait -n; done
    ! grep -q '^refused' "results-$1" || break
    [ $SECONDS -lt $until ] || { echo "late $name" >>"results-$1"; continue; }
    n=$((n + 1))
    check_case "$1" $n "$name" "${checker[@]}" &
  done <"cases-$1"
  wait
  ! grep -q '^refused' "results-$1" || { echo "SKIP compute-sanitizer does not support this device"; return 0; }
  sort "results-$1"
  words="$(count "$1" clean) of $(wc -l <"cases-$1") cases clean, $(count $1 wrong) with errors,"
  words+=" $(count $1 slow) stopped for time, $(count $1 late) not begun, $(count $1 unchecked) where the tool failed"
  ! grep '^wrong' "results-$1" | sed 's/^/failed: /' | grep . || { echo "figure: $words"; return 1; }
  if grep -qE '^(slow|late|unchecked)' "results-$1"; then echo "PART $words"; else echo "figure: $words"; fi
}

model="--device.kind cuda --launch.ranks threads"
if [ -n "$small" ]; then
  model+=" --model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8 --train.micro_batch 1"
  model+=" --train.global_batch 4"
  wider="--model.hidden 64 --model.heads 4 --model.seq 16"  # shards of the toy model are too narrow for FP8 GEMMs
else
  wider=""
  model+=" --model.layers 4 --model.hidden 256 --model.heads 4 --model.vocab 1000 --model.seq 128 --train.micro_batch 2"
  model+=" --train.global_batch 16"
fi

# Verifies each layout of standard input (one line of flags each) against one rank; continues after failures.
layouts() {
  local n=0 wrong=0 words
  while IFS= read -r words; do
    n=$((n + 1))
    trainer verify $model $words || { fail "gpttrain verify $model $words"; wrong=$((wrong + 1)); }
  done
  echo "figure: $((n - wrong)) of $n layouts equal one rank"
  [ $wrong = 0 ]
}
full_layouts="--tp 2 --pp 2 --dp 2
--tp 2 --pp 2 --dp 2 --zero 3
--pp 2 --vpp 2 --parallel.schedule interleaved --model.layers 4 --dp 2 --zero 2
--pp 4 --parallel.schedule zb-h1 --model.layers 4
--tp 2 --dp 2 --model.dropout 0.1 --parallel.recompute full
--tp 2 --dp 2 --optim.type lamb"
[ -n "$small" ] || full_layouts+=$'\n--tp 4 --dp 2 --model.dropout 0.1 --parallel.recompute full'
precisions="--tp 2 --pp 2 --dp 2 --amp O2 --precision.dtype bf16
--tp 2 --dp 2 --amp O1 --precision.dtype bf16
--pp 2 --dp 2 --zero 1 --amp O2 --precision.dtype fp16
--tp 2 --amp O3 --precision.dtype bf16
--tp 2 --pp 2 --dp 2 --amp O2 --precision.dtype bf16 --precision.fp8 current $wider
--tp 2 --dp 2 --zero 3 --amp O2 --precision.dtype bf16 --precision.fp8 delayed $wider
--tp 2 --dp 2 --amp O2 --precision.dtype bf16 --device.attention own
--tp 2 --dp 2 --precision.tf32 true"

# Verifies every family on tp 2, pp 2, dp 2, four programs at a time.
family_configs="llama-1b llama-3.1-8b mistral-7b qwen2-0.5b qwen3-0.6b olmo2-7b gemma2-2b gemma3-1b bert-base"
[ -z "$small" ] || family_configs="bert-base"
families() {
  local name precision n=0 wrong
  : >families.txt
  for name in $family_configs; do
    for precision in O0 O2; do
      while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
      n=$((n + 1))
      { trainer verify --config "$root/configs/$name.json" --device.kind cuda --launch.ranks threads --tp 2 --pp 2 --dp 2 \
        --amp $precision --precision.dtype bf16 >"$logs/runs/$name-$precision.txt" 2>&1 ||
        echo "failed: $name $precision: $(tail -1 "$logs/runs/$name-$precision.txt")" >>families.txt; } &
    done
  done
  wait
  wrong=$(wc -l <families.txt)
  cat families.txt
  echo "figure: $((n - wrong)) of $n runs of $(wc -w <<<"$family_configs") families equal one rank, in f32 and bf16"
  [ "$wrong" = 0 ]
}

# train NAME FLAG…; losses NAME: loss and gradient norm of every step, with all digits
train() {
  local name=$1 code=0
  shift
  trainer --data.train mock --schedule.type constant --log.tensorboard false --log.name "$name" "$@" \
    >"$name.txt" 2>&1 || code=$?
  cp "runs/$name/log.jsonl" "$logs/runs/$name.jsonl" && cp "$name.txt" "$logs/runs/"
  [ $code = 0 ] || { cat "$name.txt"; fail "training $*"; }
}
losses() {
  sed -nE 's/^\{"type": "step".*[{ ]("loss": [0-9.e+-]+),( "pair_loss": [^,]*,)? ("grad_norm": [0-9.e+-]+),.*/\1 \3/p' \
    "runs/$1/log.jsonl"
}
same() {  # NAME OTHER: bitwise, including the state
  [ -n "$(losses "$1")" ] && [ "$(losses "$1")" = "$(losses "$2")" ] ||
    { paste <(losses "$1") <(losses "$2"); fail "losses of $2 and $1 differ"; return 1; }
  trainer ckpt diff "runs/$1" "runs/$2" || fail "the states of $1 and $2 differ"
}
# The largest relative differences of losses and of gradient norms between two runs.
far() {  # NAME OTHER [STEPS]
  paste <(losses "$1") <(losses "$2") | head -n "${3:-1000000}" |
    awk '{a = $2 / $6 - 1; b = $4 / $8 - 1; if (a < 0) a = -a; if (b < 0) b = -b; if (a > l) l = a; if (b > n) n = b}
      END {printf "%.2g %.2g\n", l, n}'
}
# Requires STEPS steps in both runs, losses within LOSS, and norms of the first 20 steps within NORM (relative).
near() {  # NAME OTHER STEPS LOSS NORM
  local loss norm
  [ "$(losses "$1" | wc -l)" = "$3" ] && [ "$(losses "$2" | wc -l)" = "$3" ] ||
    { fail "$1 and $2 do not both have $3 steps with loss and norm"; return 1; }
  loss=$(far "$1" "$2" | cut -d' ' -f1) norm=$(far "$1" "$2" 20 | cut -d' ' -f2)
  paste <(losses "$1") <(losses "$2")
  echo "$2 against $1: losses differ by $loss ($4 is allowed), norms by $norm ($5)" | tee -a near.txt
  awk -v d="$loss" -v most="$4" -v e="$norm" -v more="$5" 'BEGIN {exit !(d <= most && e <= more)}' ||
    fail "$1 and $2: losses differ by $loss, $4 is allowed; norms by $norm, $5 is allowed"
}
steps=20
[ -z "$small" ] || steps=3
half="--amp O2 --precision.dtype bf16"

graphs() {
  local precision name k=0  # with dropout our own attention, without it cuDNN's
  for precision in "--model.dropout 0.1" "$half" "$half --precision.fp8 delayed $wider --model.dropout 0.1"; do
    name=graphs$((k++))
    train $name-off $model $precision --train.steps $steps --device.graphs off &&
      train $name-on $model $precision --train.steps $steps --device.graphs on &&
      same $name-off $name-on || return 1
    grep -E 'graphs +[0-9]+ replayed' $name-on.txt | tail -1
  done
  echo "figure: graphs and eager are bitwise identical, $steps steps each of $k precisions"
}
repeat() {
  local options="$model $half --train.steps $steps --train.deterministic true"
  train once $options && train again $options && same once again &&
    echo "figure: two deterministic runs are bitwise identical"
}

# Flags of a shipped config for measurements (124m: GPT-2's): one rank, cuDNN attention with PyTorch's nondeterministic
# backward. Without cuDNN our own attention, which the figures then report; the goal device has failed.
config_of() {
  if [ -n "$small" ]; then  # without GEMM tuning, which takes a minute in the emulation
    echo "$model"
  else
    [[ $1 == *-* ]] || set -- "gpt2-$1"
    echo "--config $root/configs/$1.json --tp 1 --dp 1 --parallel.recompute none --device.kind cuda --device.gemm_tune auto"
  fi
  echo "$half --device.attention $(has_cudnn && echo cudnn || echo own) --train.deterministic false"
}
by_whom() { has_cudnn || echo " WITHOUT cuDNN"; }
# batch_of MICRO [SEQUENCES]: batch flags of a step of 64 sequences, 65,536 tokens; toys have their own
batch_of() { [ -n "$small" ] || echo "--train.micro_batch $1 --train.global_batch ${2:-64}"; }

# Real sizes, which no other goal covers: the 124M in one microbatch of 65,536 tokens, in 16, and with our own
# attention.
scale() {
  local options most=64 least=4
  [ -z "$small" ] || most=4 least=1
  options="$(config_of 124m) --train.steps 3 --train.eval_every 0 --train.global_batch $most"
  train whole $options --train.micro_batch $most && train pieces $options --train.micro_batch $least &&
    train own $options --train.micro_batch $most --device.attention own || return 1
  rm -rf runs/whole/checkpoints runs/pieces/checkpoints runs/own/checkpoints near.txt
  near whole pieces 3 1e-3 1e-2 && near whole own 3 1e-3 1e-2 || return 1
  echo "figure: 124M, 3 steps: $(paste -sd';' near.txt)"
}

demo_losses() {
  local long=200 precision name norm
  local options="--config $root/configs/demo.json --data.tokenizer= --data.split= --train.eval_every 0"
  [ -z "$small" ] || { long=3 options=$model; }
  rm -f near.txt
  for name in f32 bf16; do
    precision="" norm=1e-4  # two instruction sets of a CPU part by 0.6 % within these steps, too: tokens are random
    [ $name = f32 ] || precision=$half norm=1e-2
    train cpu-$name $options $precision --device.kind cpu --train.steps $long &&
      train gpu-$name $options $precision --device.kind cuda --train.steps $long &&
      near cpu-$name gpu-$name $long 1e-2 $norm || return 1
  done
  echo "figure: $long steps of the demo: $(paste -sd';' near.txt)"
}

resume() {
  rm -f near.txt
  train cpu $model --device.kind cpu --train.steps 6 && train mixed $model --device.kind cpu --train.steps 2 &&
    train mixed $model --train.steps 4 --tp 2 && train mixed $model --device.kind cpu --train.steps 6 &&
    near cpu mixed 6 1e-3 1e-2 || return 1
  echo "figure: CPU, then GPU with tp 2, then CPU: $(cat near.txt)"
}

# PyTorch's logits, gradients and ten losses in llm.c's files: those of a small model, and GPT-2's if available.
llmc() {
  GPT_LLMC_SMALL=$root/tests/golden/llmc timeout -k 10 "$(left)" "$llmc_tests" "a small debug state*,GPT-2 124M*" \
    >llmc.txt 2>&1 || { cat llmc.txt; fail "$llmc_tests"; return 1; }
  cat llmc.txt
  grep -q '^small, GPU: ' llmc.txt || { fail "$llmc_tests finds no GPU"; return 1; }
  if [ -n "${GPT_LLMC_DIR:-}" ]; then
    grep -q '^124M, GPU: ' llmc.txt || { fail "$llmc_tests used no file of $GPT_LLMC_DIR"; return 1; }
    echo "figure: $(grep -E '^124M, ' llmc.txt | paste -sd';')"
  else
    echo "PART $(grep -E '^small, GPU' llmc.txt | paste -sd';'); GPT_LLMC_DIR names no files of the 124M"
  fi
}

# The 124M on real text, beside transformers from the same weights, tokens and steps; then export and generation.
text() {
  local count=${GPT_GPU_STEPS:-100} options
  [ -n "${GPT_GPU_TOKENS:-}" ] || { echo "SKIP GPT_GPU_TOKENS names no tokens"; return 0; }
  python3 -c 'import torch, transformers; assert torch.cuda.is_available()' ||
    { echo "SKIP python3 has no transformers with a GPU"; return 0; }
  timeout -k 10 "$(left)" python3 "$root/tests/bench/hf_losses.py" hf "$GPT_GPU_TOKENS.bin" --steps "$count" \
    --warmup $((count / 10)) --lr 3e-4 --compile --device cuda >hf.txt || { fail "hf_losses.py"; return 1; }
  options="--from hf --model.seq 1024 --device.kind cuda $half --data.order sequential --data.split 1"
  options+=" --train.micro_batch 64 --train.global_batch 64 --train.eval_every 0 --optim.lr 3e-4 --optim.betas 0.9,0.95"
  options+=" --optim.eps 1e-8 --optim.weight_decay 0.1 --optim.grad_clip 1 --schedule.warmup_steps $((count / 10))"
  train text $options --data.train "$GPT_GPU_TOKENS" --data.tokenizer "$GPT_GPU_TOKENS.model" --train.steps "$count" ||
    return 1
  trainer export --load runs/text --output exported &&
    trainer generate --load runs/text --prompt "Sail" --max-tokens 40 --seed 7 || { fail "export or generate"; return 1; }
  # At a spike both leave the curve, and part there for some steps.
  paste hf.txt <(losses text) | awk '{d = $4 / $2 - 1; if (d < 0) d = -d; if (d > most) most = d; sum += d; print; n++}
    n % 10 == 0 && d > tenth {tenth = d}
    END {printf "figure: %d steps, losses within %.3f %% of transformers, %.3f %% in every tenth step, %.3f %% on average\n",
      n, 100 * most, 100 * tenth, 100 * sum / n; exit !(n > 0 && tenth <= 5e-3)}' || fail "losses differ by more than 0.5 %"
}

# NCCL needs one GPU per rank, or version 2.30 and permission to share one.
backends() {
  local gpus figure options="$model --tp 2 --train.steps $steps" given=()
  [ -z "${GPT_GPU_NCCL:-}" ] || given=(--comm.nccl_library "$GPT_GPU_NCCL")
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c . || true)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  train staged $options --launch.ranks processes --comm.backend staged &&
    train threads $options --launch.ranks threads --comm.backend staged && same staged threads &&
    train direct $options --launch.ranks threads --comm.backend direct && same staged direct || return 1
  figure="figure: staged, by threads and by processes, and direct are bitwise identical;"
  [ "$gpus" -ge 2 ] || export NCCL_MULTI_RANK_GPU_ENABLE=1
  options+=" --launch.ranks processes --comm.backend nccl"
  train nccl $options "${given[@]}" || {
    [ "$gpus" -lt 2 ] || return 1
    echo "$figure NCCL UNTESTED: $(grep -iE 'nccl' nccl.txt | tail -1)"
    return 0
  }
  train nccl-again $options "${given[@]}" && same nccl nccl-again && near staged nccl $steps 1e-3 1e-2 || return 1
  echo "$figure NCCL is bitwise reproducible; $(tail -1 near.txt)"
}

. "$root/tests/bench/gpu_speed.sh"

goal device device
goal parity parity
goal layouts layouts <<<"$full_layouts"
goal precision layouts <<<"$precisions"
goal families families
goal graphs graphs
goal repeat repeat
goal scale scale
goal ceilings ceilings
goal speed speed
goal small-batch small_batch
goal fp8 fp8
goal ops ops
goal choices choices
goal peer peer
goal backends backends
goal losses demo_losses
goal resume resume
goal llmc llmc
goal text text
goal memcheck checked memcheck
goal racecheck checked racecheck
exit $failed
