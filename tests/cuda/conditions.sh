#!/usr/bin/env bash
# Clocks, power, temperature and clock limits in bench records, on the emulated device with a scripted NVML
# (fake_nvml/): of each rank's own GPU, although that NVML numbers GPUs in reverse; and what remains when a query is
# refused.
#   tests/cuda/conditions.sh BUILD/emulated/gpttrain
set -euo pipefail
# shellcheck source=tests/cuda/rig.sh
source "$(dirname "$(realpath "$0")")/rig.sh"
nvml=$(dirname "$program")/../fake_nvml
[ -f "$nvml/libnvidia-ml.so.1" ] || fail "no libnvidia-ml.so.1 in $nvml"

small="--model.layers 2 --model.hidden 32 --model.heads 2 --model.vocab 64 --model.seq 32 --train.micro_batch 4"
small+=" --train.global_batch 16 --launch.ranks threads --device.kind cuda"
bench() {  # NAME FLAG...: with that NVML; long enough for several samples
  local name=$1
  shift
  # shellcheck disable=SC2086
  LD_LIBRARY_PATH="$nvml" "$program" bench $small --warmup 1 --steps "${steps:-3}" --out "$name.json" "$@" \
    >"$name.txt" 2>&1 || { cat "$name.txt"; fail "bench $*"; }
}
# holds NAME EXPRESSION…: checks Python expressions; c: the record's conditions, r: the record
holds() {
  python3 - "$@" <<'PYTHON' || fail "$1.json does not hold"
import json, sys
r = json.loads(open(sys.argv[1] + ".json").read())
c = r.get("conditions")
n = c["looks"] if c else 0
def per_look(limits):  # shares as numbers of samples
    return {k: round(v * n, 6) for k, v in limits.items()}
for e in sys.argv[2:]:
    if not eval(e):
        sys.exit(f"not so: {e}\n{json.dumps(c or r, indent=1)}")
PYTHON
}
prints() { grep -qE -- "$2" "$1.txt" || { cat "$1.txt"; fail "$1 does not print: $2"; }; }

bench one
holds one "n >= 3" \
  "c['clock_mhz'] == {'min': 1200, 'median': 1755, 'max': 1980}" \
  "c['memory_mhz'] == {'min': 2619, 'median': 2619, 'max': 2619}" \
  "c['watts'] == {'min': 250.5, 'median': 412.25, 'max': 698.125}" "c['watt_limit'] == 700" \
  "c['celsius'] == {'min': 41, 'median': 58, 'max': 66}" \
  "per_look(c['limits']) == {'clock_settings': 1, 'power_cap': n - 1, 'other': 1}" "c['why_unknown'] is None" \
  "'hottest' not in c" \
  "r['libraries']['NVIDIA driver'].startswith('580.65.06, serves CUDA ')" "r['libraries']['cuBLASLt'] == '13.0.0'" \
  "r['libraries']['CUDA runtime'].split('.')[0] in ('12', '13')" \
  "'oneDNN' in r['libraries'] and 'NCCL' in r['libraries']"
prints one '^clocks +1755 MHz \(1200 to 1980\)   memory 2619 MHz   412 W \(250 to 698, limit 700\)   58 C \(41 to 66\)$'
prints one '^warning +clocks were throttled: power_cap in [0-9]+ % of [0-9]+ samples[,;]'
! grep -q clock_settings one.txt || fail "clocks set by the user cause a warning"
grep '^clocks' one.txt
echo "the GPU of a single rank: minimum, median and maximum of the samples, without the warm-up"

GPTTRAIN_EMULATED_DEVICES=2 bench two --dp 2
holds two "c['clock_mhz']['max'] == 1980" "c['hottest'] == {'rank': 1, 'celsius': 81}" \
  "c['lowest_clock'] == {'rank': 1, 'clock_mhz': 1305}" \
  "c['limits_anywhere']['hw_thermal'] == {'rank': 1, 'share': 1, 'ranks': 1}" \
  "set(c['limits_anywhere']) == {'clock_settings', 'power_cap', 'other', 'hw_thermal', 'hw_slowdown'}" \
  "'hw_thermal' not in c['limits']"
prints two '^ +rank 1 the hottest, 81 C; rank 1 with the lowest clock, 1305 MHz$'
prints two '^warning +clocks were throttled: hw_thermal in 100 % of [0-9]+ samples \(rank 1\), '
GPTTRAIN_EMULATED_DEVICES=2 bench shared --dp 4
holds shared "c['hottest']['rank'] in (1, 3)" \
  "c['limits_anywhere']['hw_thermal'] == {'rank': 1, 'share': 1, 'ranks': 2}"
prints shared 'hw_thermal in 100 % of [0-9]+ samples \(rank 1, and 1 more\)'
echo "of several ranks: whose GPU was the hottest, the slowest, and throttled by what"

GPTTRAIN_FAKE_NVML_REFUSES="nvmlDeviceGetPowerUsage nvmlDeviceGetCurrentClocksEventReasons" bench partly
holds partly "c['clock_mhz']['median'] == 1755" "c['celsius']['max'] == 66" "c['watts'] is None" "c['limits'] is None" \
  "c['why_unknown'] == 'power: Not Supported; clock limits: Not Supported'"
prints partly '^clocks +1755 MHz \(1200 to 1980\)   memory 2619 MHz   58 C'
for refusal in "nvmlInit_v2:nvmlInit_v2: Not Supported" \
  "nvmlDeviceGetHandleByPciBusId_v2:NVML has no GPU at EE00:00:00.0: Not Supported"; do
  steps=2 GPTTRAIN_FAKE_NVML_REFUSES=${refusal%%:*} bench refused
  holds refused "c['looks'] == 0" "c['clock_mhz'] is None and c['celsius'] is None and c['limits'] is None" \
    "c['why_unknown'] == '${refusal#*:}'" "r['steps'] == 2"
  ! grep -qE '^(clocks|warning)' refused.txt || { cat refused.txt; fail "nothing was measured and conditions are printed"; }
done
nvml=${nvml}_renamed bench renamed
holds renamed "c['celsius'] == {'min': 41, 'median': 58, 'max': 66}" "c['why_unknown'] is None" \
  "per_look(c['limits']) == {'clock_settings': 1, 'power_cap': n - 1, 'other': 1}"
GPTTRAIN_EMULATED_DEVICES=3 steps=2 bench unknown --dp 3 --train.global_batch 12
holds unknown "c['hottest']['rank'] == 1" "c['clock_mhz'] is not None"
mkdir none && echo "no library" >none/libnvidia-ml.so.1
steps=2 nvml=none bench without
holds without "c['why_unknown'].startswith('no NVML: ')" "c['looks'] == 0" \
  "r['libraries']['NVIDIA driver'].startswith('version unknown, serves CUDA')"
echo "values that NVML refuses are null, with the reason; without NVML all are"

# Both sides of a pair are sampled in the same way, and only while the device computes. The baseline runs in the user's
# environment, without this program's settings (this stand-in would be slower with them).
unset CUDA_DEVICE_MAX_CONNECTIONS
# shellcheck disable=SC2016
peer='sleep 0.5; echo "${CUDA_DEVICE_MAX_CONNECTIONS:-100} tokens/s"'
for idle in "" 1; do
  # shellcheck disable=SC2086
  LD_LIBRARY_PATH="$nvml" GPTTRAIN_EMULATED_DEVICES=2 ${idle:+env GPTTRAIN_FAKE_NVML_IDLE=1} \
    "$program" bench peer $small --dp 2 --warmup 0 --steps 2 --pairs 1 --run "$peer" --out "peer$idle.json" \
    >"peer$idle.txt" 2>&1 || { cat "peer$idle.txt"; fail "bench peer"; }
done
holds peer "r['pairs'][0]['peer'] == 100" \
  "r['pairs'][0]['conditions']['ours']['clock_mhz']['max'] == 1980" \
  "r['pairs'][0]['conditions']['peer']['clock_mhz'] == {'min': 1755, 'median': 1755, 'max': 1755}" \
  "r['pairs'][0]['conditions']['peer']['hottest'] == {'device': 1, 'celsius': 72}" \
  "r['last']['conditions']['looks'] >= 1"
prints peer '^  baseline +1755 MHz \(1755 to 1755\)'
prints peer '^ +throttled: .*hw_thermal in 100 % of [0-9]+ samples \(device 1\)'
holds peer1 "r['pairs'][0]['conditions']['ours']['clock_mhz'] == {'min': 1200, 'median': 1755, 'max': 1980}" \
  "r['pairs'][0]['conditions']['ours']['looks'] == 3" \
  "r['pairs'][0]['conditions']['peer']['clock_mhz'] is None"
prints peer1 '^  ours +1755 MHz \(1200 to 1980\)'
! grep -q '^  baseline ' peer1.txt || { cat peer1.txt; fail "samples of an idle device count for the baseline"; }
echo "pairs report the conditions of both sides"

# shellcheck disable=SC2086
for kind in cuda cpu; do
  LD_LIBRARY_PATH="$nvml" "$program" $small --device.kind $kind --train.steps 1 --data.train mock --log.name $kind \
    >train.txt 2>&1 || { cat train.txt; fail "training"; }
done
for curve in gpu_util gpu_power_w gpu_temp_c gpu_sm_mhz; do
  grep -qa "sys/$curve" runs/cuda/*tfevents* || fail "no curve sys/$curve"
done
! grep -qa sys/gpu runs/cpu/*tfevents* || fail "a processor's clock is drawn as a GPU's"
echo "training draws the GPU's conditions as curves"

LD_LIBRARY_PATH="$nvml" "$program" --version | grep -E '^NVIDIA driver +580.65.06, serves CUDA' ||
  fail "--version has no driver"
