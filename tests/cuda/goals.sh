#!/usr/bin/env bash
# tests/gpu.sh when a goal is missed: verdict, exit code and output. On the emulated device, with scripts in place of
# compute-sanitizer and nvidia-smi, and the tests' NVML.
#   tests/cuda/goals.sh BUILD/emulated/gpttrain
set -euo pipefail
goals=$(realpath "$(dirname "$0")/../gpu.sh")
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"
GPT_BUILD=$(dirname "$program")
export GPT_BUILD GPT_GPU_LOGS=$work/logs PATH=$work:$PATH LD_LIBRARY_PATH=$GPT_BUILD/../fake_nvml

# Reports an error in axpy, takes a minute for sgd, or finds no such device.
cat >compute-sanitizer <<'SCRIPT'
#!/usr/bin/env bash
while [ $# -gt 2 ]; do
  case $1 in
    --tool | --error-exitcode | --kernel-name | --report-api-errors | --require-cuda-init) shift 2 ;;
    *) exit 3 ;;
  esac
done
case $FAKE$2 in
  refuses*) echo "========= Error: Device not supported"; exit 1 ;;
  finds*axpy*) "$@"; echo "========= ERROR SUMMARY: 1 error"; exit 9 ;;
  sleeps*sgd*) exec sleep 60 ;;
esac
exec "$@"
SCRIPT
printf '#!/bin/sh\n' >nvidia-smi
chmod +x compute-sanitizer nvidia-smi

# expect CODE PATTERN WORDS…: tests/gpu.sh with these WORDS exits with CODE and prints PATTERN
expect() {
  local code=$1 pattern=$2 got=0
  shift 2
  "$goals" "$@" >output.txt 2>&1 || got=$?
  [ "$got" = "$code" ] || { cat output.txt; fail "$* ended with $got, expected $code"; }
  grep -qE "$pattern" output.txt || { cat output.txt; fail "$* does not print: $pattern"; }
  echo "as expected: $(grep -m1 -E "$pattern" output.txt | cut -c1-110)"
}

expect 1 '^FAILED +device .*attention would be computed by our own kernels' device
export GPTTRAIN_EMULATED_CUDNN=1
expect 0 '^ok +device .*driver 580.65.06, serves CUDA [0-9.]+, emulated cuDNN' device
export GPT_GPU_CASES="parity: axpy agrees*,parity: sgd agrees*,segments: group sums*"
FAKE=nothing expect 0 '^ok +racecheck .* 3 of 3 cases clean' racecheck
FAKE=finds expect 1 '^FAILED +memcheck .* 2 of 3 cases clean, 1 with errors.*axpy' memcheck
FAKE=refuses expect 0 '^SKIP +memcheck .*does not support' memcheck
FAKE=sleeps GPT_GPU_LIMIT=12 expect 0 '^PART +memcheck .* 0 with errors, [12] stopped for time' memcheck
GPT_GPU_BUDGET=10 expect 0 '^SKIP +parity .*are spent' parity
GPT_GPU_SMALL=floors expect 3 '^MISSED +speed .*124m .* 550.0k MISSED.* 1558m .* 56.0k MISSED' speed
GPT_GPU_SMALL=floors expect 3 '^MISSED +small-batch .* of its roofline, 0.5 MISSED' small-batch
# Peak throughput set so low that even the emulation is near it.
GPT_GPU_SMALL=floors GPT_GPU_STAND_IN=1e4 expect 0 \
  '^ok +speed .*124m .* 550.0k not, but R is [0-9.]+ s here: 0.74 of it MET' ceilings speed
GPT_GPU_OUT=$work/out GPT_GPU_SMALL=1 expect 0 '^ok +repeat' repeat
mkdir none
GPT_LLMC_DIR=$work/none expect 1 '^FAILED +llmc .*test_llmc' llmc
tar xzf out/gpu-logs.tgz logs/runs/once.jsonl || fail "gpu-logs.tgz has no log of the steps"

mkdir lone bare deaf
cp "$GPT_BUILD/test_kernels" deaf/ && ln -s "$program" deaf/gpttrain
GPT_BUILD=$work/deaf expect 1 '^FAILED +memcheck .*finds no GPU' memcheck
cp "$program" lone/
GPT_BUILD=$work/lone expect 1 'no device that the CUDA backend supports' parity
echo "this build is without cuDNN" >bare/libgpttrain_cuda.so
GPT_BUILD=$work/bare expect 2 'was built without cuDNN' pack "$work/folder"
expect 2 'no goal nothing' nothing
