#!/usr/bin/env bash
# What only a machine with an NVIDIA GPU can show, one line a goal: verdict, name, seconds, figure. Ends with 1 when a goal
# failed; a goal that this machine cannot try says SKIP and why.
#   tests/gpu.sh                       every goal, in the order below, with the program of build/cuda or build/cpu
#   tests/gpu.sh parity layouts        only these
#   tests/gpu.sh pack FOLDER           the portable bundle with this script and the tests of the kernels, for a machine where
#                                      nothing is installed: copy FOLDER there, then FOLDER/tests/gpu.sh
#   GPT_BUILD=build/dev                with a build that is there
#   GPT_GPU_LIMIT=300                  seconds that one command may take
#   GPT_GPU_LOGS=gpu-logs              where the output of each goal is kept
#   GPT_GPU_PEER=COMMAND               a peer beside PyTorch in the goal peer
#   GPT_GPU_SMALL=1                    toy sizes, and a device that is emulated will do: shows that this script works
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
limit=${GPT_GPU_LIMIT:-300}
small=${GPT_GPU_SMALL:-}
goals="device parity memcheck racecheck layouts precision graphs repeat losses resume backends ceilings ops speed fp8 small-batch peer"

find_programs() {
  local folder
  for folder in ${GPT_BUILD:+"$GPT_BUILD"} "$root/bin" "$root/build/cuda" "$root/build/cpu"; do
    [ -x "$folder/gpttrain" ] || continue
    gpttrain=$folder/gpttrain kernel_tests=$folder/test_kernels
    return 0
  done
  echo "gpu: no gpttrain in $root/bin, build/cuda or build/cpu: cmake --workflow --preset cuda"
  exit 2
}

# pack FOLDER: as `cmake --install`, and what this script runs besides the trainer.
pack() {
  local build=${GPT_BUILD:-$root/build/cpu} folder=$1 library
  [ -f "$build/libgpttrain_cuda.so" ] || { echo "gpu: $build has no CUDA backend"; return 2; }
  cmake --install "$build" --prefix "$folder" >/dev/null || return 1
  mkdir -p "$folder/tests/bench" && cp "$root/tests/gpu.sh" "$folder/tests/" &&
    cp "$root/tests/bench/torch_gpt2.py" "$folder/tests/bench/" && cp "$build/test_kernels" "$folder/bin/" &&
    patchelf --set-rpath '$ORIGIN/../lib' "$folder/bin/test_kernels" || return 1
  strip "$folder/bin/test_kernels"
  while read -r library; do
    [ -e "$folder/lib/$library" ] || { echo "gpu: the bundle lacks $library, which test_kernels needs"; return 1; }
  done < <(readelf -d "$folder/bin/test_kernels" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc|libm|ld-linux.*)\.so')
  du -sh "$folder"
}
[ "${1:-}" != pack ] || { [ $# = 2 ] || { echo "usage: tests/gpu.sh pack FOLDER"; exit 2; }; pack "$2"; exit; }
for name in "$@"; do
  [[ " $goals " == *" $name "* ]] || { echo "gpu: no goal $name; there are: $goals"; exit 2; }
done

find_programs
gpttrain=$(realpath "$gpttrain")
logs=$(realpath -m "${GPT_GPU_LOGS:-gpu-logs}")
mkdir -p "$logs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
wanted=" $* "
failed=0

# goal NAME PATTERN COMMAND…: its figure is the last line of output that matches; "SKIP why" as the last line skips it.
goal() {
  local name=$1 pattern=$2 log=$logs/$1.log begin=$SECONDS figure verdict=ok
  shift 2
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
  "$@" >"$log" 2>&1 || verdict=FAILED
  figure=$(grep -E "$pattern" "$log" | tail -1)
  if [[ $(tail -1 "$log") == SKIP* ]]; then verdict=SKIP figure=$(tail -1 "$log" | cut -c6-); fi
  [ -n "$figure" ] || verdict=FAILED
  [ $verdict != FAILED ] || { failed=1; figure="$figure (see $log)"; }
  printf '%-7s %-12s %5d s  %s\n' "$verdict" "$name" $((SECONDS - begin)) "$figure"
}
fail() { echo "failed: $*"; return 1; }
trainer() { timeout -k 10 "$limit" "$gpttrain" "$@" </dev/null; }

device() {
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || true
  trainer --version || return 1
  if [ -n "$small" ]; then echo "device: an emulated one will do"; return 0; fi
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sed 's/^/device: /' | head -1
}
goal device '^device: ' device

parity() {
  local cases="parity*,segments*,marks*,replay*"
  [ -z "$small" ] || cases="parity: every backend*,parity: add agrees*"
  timeout -k 10 "$limit" "$kernel_tests" "$cases" | tee parity.txt || return 1
  ! grep -q 'not checked on a GPU' parity.txt || { fail "no GPU took part"; return 1; }
}
goal parity 'All tests passed' parity
checked() {  # TOOL: compute-sanitizer over the ops
  command -v compute-sanitizer >/dev/null || { echo "SKIP no compute-sanitizer in PATH"; return 0; }
  timeout -k 10 "$limit" compute-sanitizer --tool "$1" --error-exitcode 9 "$kernel_tests" "parity*"
}
goal memcheck 'ERROR SUMMARY' checked memcheck
goal racecheck 'RACECHECK SUMMARY|ERROR SUMMARY' checked racecheck

model="--device.kind cuda --launch.ranks threads"
[ -z "$small" ] || model+=" --model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8
  --train.micro_batch 1 --train.global_batch 4"
[ -n "$small" ] || model+=" --model.layers 4 --model.hidden 256 --model.heads 4 --model.vocab 1000 --model.seq 128
  --train.micro_batch 2 --train.global_batch 16"

# Every line of input: options of a layout that must equal one rank.
layouts() {
  local n=0 words
  while IFS= read -r words; do
    [ -n "$words" ] || continue
    # shellcheck disable=SC2086
    trainer verify $model $words || { fail "gpttrain verify $model $words"; return 1; }
    n=$((n + 1))
    [ -z "$small" ] || break
  done
  echo "$n layouts equal one rank"
}
goal layouts 'layouts equal' layouts <<'LAYOUTS'
--tp 2 --pp 2 --dp 2
--tp 2 --pp 2 --dp 2 --zero 3
--pp 2 --vpp 2 --parallel.schedule interleaved --dp 2 --zero 2
--pp 4 --parallel.schedule zb-h1
--tp 4 --dp 2 --model.dropout 0.1 --parallel.recompute full
--tp 2 --dp 2 --optim.type lamb
LAYOUTS
goal precision 'layouts equal' layouts <<'LAYOUTS'
--tp 2 --pp 2 --dp 2 --amp O2 --precision.dtype bf16
--tp 2 --dp 2 --amp O1 --precision.dtype bf16
--pp 2 --dp 2 --zero 1 --amp O2 --precision.dtype fp16
--tp 2 --amp O3 --precision.dtype bf16
--tp 2 --pp 2 --dp 2 --amp O2 --precision.dtype bf16 --precision.fp8 current
--tp 2 --dp 2 --zero 3 --amp O2 --precision.dtype bf16 --precision.fp8 delayed
--tp 2 --dp 2 --amp O2 --precision.dtype bf16 --device.attention own
--tp 2 --dp 2 --precision.tf32 true
LAYOUTS

# train NAME FLAG…; losses NAME: loss and norm of every step, all digits
train() {
  local name=$1
  shift
  trainer --data.train mock --schedule.type constant --log.tensorboard false --log.name "$name" "$@" >"$name.txt" 2>&1 ||
    { cat "$name.txt"; fail "training $*"; }
}
losses() {
  sed -nE 's/^\{"type": "step".*"epoch": [0-9]+, ("loss": [0-9.e+-]+), ("grad_norm": [0-9.e+-]+),.*/\1 \2/p' "runs/$1/log.jsonl"
}
same() {  # NAME OTHER: bit for bit, the state too
  [ -n "$(losses "$1")" ] && [ "$(losses "$1")" = "$(losses "$2")" ] ||
    { paste <(losses "$1") <(losses "$2"); fail "$2 trains otherwise than $1"; return 1; }
  trainer ckpt diff "runs/$1" "runs/$2" || fail "the states of $1 and $2 differ"
}
steps=20
[ -z "$small" ] || steps=3

graphs() {
  local precision amp="--amp O2 --precision.dtype bf16"
  for precision in "" "$amp" "$amp --precision.fp8 delayed"; do
    local name=graphs$((k++))
    # shellcheck disable=SC2086
    train $name-off $model $precision --train.steps $steps --model.dropout 0.1 --device.graphs off &&
      train $name-on $model $precision --train.steps $steps --model.dropout 0.1 --device.graphs on &&
      same $name-off $name-on || return 1
    grep -E 'graphs +[0-9]+ replayed' $name-on.txt | tail -1
    [ -z "$small" ] || break
  done
  echo "graphs and eager are equal bit for bit, $steps steps each"
}
k=0
goal graphs 'equal bit for bit' graphs

repeat() {
  local options="$model --amp O2 --precision.dtype bf16 --train.steps $steps --train.deterministic true"
  # shellcheck disable=SC2086
  train once $options && train again $options && same once again && echo "two deterministic runs are equal bit for bit"
}
goal repeat 'equal bit for bit' repeat

# far NAME OTHER: the largest relative difference of a loss
far() {
  paste <(losses "$1") <(losses "$2") | awk '{d = $2 / $6 - 1; if (d < 0) d = -d; if (d > most) most = d} END {print most + 0}'
}
demo_losses() {
  local long=200 precision name cpu gpu most goal_of
  local options="--config $root/configs/demo.json --data.tokenizer= --data.split= --train.eval_every 0"
  [ -z "$small" ] || { long=3 options="--model.layers 2 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 8
    --train.micro_batch 1 --train.global_batch 4"; }
  for name in f32 bf16; do
    precision="" goal_of=1e-3
    [ $name = f32 ] || precision="--amp O2 --precision.dtype bf16" goal_of=1e-2
    cpu=cpu-$name gpu=gpu-$name
    # shellcheck disable=SC2086
    train $cpu $options $precision --device.kind cpu --train.steps $long &&
      train $gpu $options $precision --device.kind cuda --train.steps $long || return 1
    most=$(far $cpu $gpu)
    [ "$(losses $gpu | wc -l)" = $long ] || { fail "$gpu has not $long steps"; return 1; }
    awk -v d="$most" -v g=$goal_of 'BEGIN {exit !(d <= g)}' || { fail "$name: losses differ by $most, $goal_of is allowed"; return 1; }
    echo "$long steps of the demo: losses of GPU and CPU differ by $most at most ($name, $goal_of is allowed)" | tee -a found
  done
  paste -sd';' found
}
goal losses 'steps of the demo' demo_losses

resume() {
  # shellcheck disable=SC2086
  train cpu $model --device.kind cpu --train.steps 6 && train mixed $model --device.kind cpu --train.steps 2 &&
    train mixed $model --train.steps 4 --tp 2 && train mixed $model --device.kind cpu --train.steps 6 || return 1
  echo "CPU, GPU with tp 2, CPU: losses differ by $(far cpu mixed) from those of the CPU alone (1e-3 is allowed)" | tee moved
  awk -v d="$(far cpu mixed)" 'BEGIN {exit !(d <= 1e-3)}'
}
goal resume 'losses differ' resume

# NCCL needs a GPU a rank, or 2.30 and leave to share one.
backends() {
  local gpus options="$model --tp 2 --train.steps $steps --launch.ranks processes"
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c . || true)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  # shellcheck disable=SC2086
  train staged $options --comm.backend staged && train threads $options --launch.ranks threads --comm.backend staged &&
    same threads staged || return 1
  [ "$gpus" -ge 2 ] || export NCCL_MULTI_RANK_GPU_ENABLE=1
  # shellcheck disable=SC2086
  train nccl $options --comm.backend nccl ${GPT_GPU_NCCL:+--comm.nccl_library "$GPT_GPU_NCCL"} || {
    echo "staged equals threads; SKIP NCCL: $(grep -iE 'nccl' nccl.txt | tail -1)" | sed 's/^/figure: /'
    return 0
  }
  # shellcheck disable=SC2086
  train nccl-again $options --comm.backend nccl ${GPT_GPU_NCCL:+--comm.nccl_library "$GPT_GPU_NCCL"} && same nccl nccl-again || return 1
  echo "figure: staged equals threads; NCCL repeats itself bit for bit, its losses differ by $(far staged nccl) from the staged ones"
}
goal backends '^figure: ' backends

config_of() {
  if [ -n "$small" ]; then echo "$model"; else echo "--config $root/configs/gpt2-$1.json --device.kind cuda"; fi
  echo "--amp O2 --precision.dtype bf16 --device.gemm_tune auto"
}
ceilings() {
  # shellcheck disable=SC2046
  trainer bench ceilings $(config_of 124m)
}
[ -n "$small" ] || goal ceilings 'TFLOP' ceilings
# Milliseconds of all ops of a step, each alone; at the ceilings; of the fused graph. The breakdown is in the log.
ops() {
  # shellcheck disable=SC2046
  trainer bench ops $(config_of 124m) $([ -n "$small" ] || echo "--train.micro_batch 64 --train.global_batch 64")
}
goal ops '^all ops' ops

warm=10
[ -z "$small" ] || warm=1
# bench NAME FLAG…: one config at 65,536 tokens a step unless FLAGs say otherwise; medians of 20 steps after 10
bench() {
  local name=$1
  shift
  # shellcheck disable=SC2046
  trainer bench $(config_of "$name") --warmup "$warm" --steps "$steps" "$@" | tee "bench-$name.txt"
}
rate() { grep -oE '[0-9][0-9,.]*[kM]? tokens/s' "bench-$1.txt" | tail -1; }
speed() {
  local figures="" name micro
  for name in 124m 355m 1558m; do
    micro=64
    [ $name != 1558m ] || micro=32
    bench $name --train.micro_batch $micro --train.global_batch 64 || return 1
    figures+="$name $(rate $name)  "
    [ -z "$small" ] || break
  done
  echo "figure: $figures"
}
fp8() {
  bench 1558m --train.micro_batch 32 --train.global_batch 64 || return 1
  local half
  half=$(rate 1558m)
  bench 1558m --train.micro_batch 32 --train.global_batch 64 --precision.fp8 delayed || return 1
  echo "figure: 1558m $half in bf16, $(rate 1558m) in fp8"
}
small_batch() { bench 124m --train.micro_batch 4 --train.global_batch 4 && echo "figure: 124m, 4 x 1024 a step: $(rate 124m)"; }
# Ratios of tokens a second, ours over the peer's, in pairs. GPT_GPU_PEER: the command line of another peer of the 124M at
# 65,536 tokens a step (llm.c's train_gpt2cu, say); its lines of steps are known, or "N tokens/s".
duel() {  # COMMAND
  # shellcheck disable=SC2046
  timeout -k 10 $((3 * limit)) "$gpttrain" bench peer $(config_of 124m) --train.micro_batch 64 --train.global_batch 64 \
    --pairs 3 --steps "$steps" --warmup "$warm" --run "$1" </dev/null
}
peer() {
  local command name figures=""
  local -A peers=()
  python3 -c 'import torch; assert torch.cuda.is_available()' &&
    peers[PyTorch]="python3 $root/tests/bench/torch_gpt2.py 64 1024 --device cuda --steps 20"
  [ -z "${GPT_GPU_PEER:-}" ] || peers[other]=$GPT_GPU_PEER
  [ -z "$small" ] || peers[echo]="echo 100 tokens/s"
  for name in "${!peers[@]}"; do
    command=${peers[$name]}
    duel "$command" | tee duel.txt || return 1
    figures+="$name: $(sed -n 's/^ratio *//p' duel.txt)  "
  done
  [ -n "$figures" ] || { echo "SKIP python3 has no PyTorch that sees a GPU, and GPT_GPU_PEER names no other peer"; return 0; }
  echo "figure: $figures"
}
goal speed '^figure: ' speed
[ -n "$small" ] || goal fp8 '^figure: ' fp8
goal small-batch '^figure: ' small_batch
goal peer '^figure: ' peer
exit $failed
