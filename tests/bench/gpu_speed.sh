#!/usr/bin/env bash
# The goals of tests/gpu.sh that measure: peaks, speed of the shipped configs, choices of defaults, other programs beside
# ours. gpu.sh reads this file after its own functions (trainer, goal, config_of and others).
# shellcheck disable=SC2086,SC2046,SC2154 # options are words of one string; gpu.sh assigns small, root, logs and others
ceilings() {
  local name="emulated device, 16 GiB, sm_90" at=${GPT_GPU_STAND_IN:-1e9}
  if [ -n "$small" ]; then  # GEMMs of 8192 would take a day in the emulation
    mkdir -p "$cache"
    echo "{\"device\": \"$name\", \"dtype\": \"bf16\", \"gemm_flops\": $at, \"gemm_fp8_flops\": $at," \
      "\"copy_bytes\": $at," \
      "\"attention\": [{\"head_dim\": 8, \"seq\": 8, \"forward_flops\": $at, \"backward_flops\": $at}]}" \
      >"$cache/ceilings-${name//[^a-zA-Z0-9]/-}-bf16.json"
    echo "figure: a stand-in"
    return 0
  fi
  trainer bench ceilings $(config_of 124m) | tee ceilings.txt || return 1
  trainer bench ceilings $(config_of llama-1b) --model.seq 2048 | tee -a ceilings.txt &&
    trainer bench ceilings $(config_of llama-7b) --model.seq 4096 | tee -a ceilings.txt || return 1
  echo "figure: $(sed -nE 's/^(GEMM|FP8 GEMM|copies|attention) +/\1 /p' ceilings.txt | paste -sd';')"
}
# Milliseconds of all ops of a step: measured separately, at peak throughput, and of the fused graph. The breakdown is
# in the log.
ops() {
  trainer bench ops $(config_of 124m) $(batch_of 64) | tee ops.txt || return 1
  [ -n "$small" ] || trainer bench ops $(config_of llama-7b) $(batch_of 1 16) --model.seq 4096 | tee -a ops.txt || return 1
  echo "figure: ms, measured; at peak; fused: $(sed -n 's/^all ops *//p' ops.txt | paste -sd';')"
}

warm=10
[ -z "$small" ] || warm=1
gib=$(sed -nE 's/^CUDA .* ([0-9]+) GiB.*/\1/p' "$logs/version.txt")  # of the device
# fits MICRO: sequences a microbatch where 141 GB hold MICRO, a quarter of them in less memory
fits() { [ "${gib:-0}" -ge 120 ] && echo "$1" || echo $((($1 + 3) / 4)); }
# bench NAME FLAG…: one config; medians of 20 steps after 10, for large models of 7 after 3. record KEY: a value of its
# record
bench() {
  local name=$1 few=$warm count=$steps
  shift
  [[ -n "$small" || $name = 124m || $name = 355m ]] || few=3 count=7
  trainer bench $(config_of "$name") --warmup "$few" --steps "$count" --out "$logs/bench.jsonl" "$@" | tee bench.txt
  [ "${PIPESTATUS[0]}" = 0 ] || fail "gpttrain bench of the $name $*"
}
clocks() { sed -nE 's/^(clocks|warning) +/, /p' bench.txt | paste -sd' '; }  # of the last bench
record() { tail -1 "$logs/bench.jsonl" | sed -nE "s/.*\"$1\":([0-9.e+-]+)[,}].*/\1/p"; }
thousands() { awk -v x="$1" 'BEGIN {printf "%.1fk", x / 1000}'; }
part() { awk -v x="$1" 'BEGIN {if (x == "") print "not measured"; else printf "%.3f", x}'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.4f", a / b}'; }
# meets NUMBER FLOOR: prints MET or MISSED; toys have no floor
meets() {
  [ "$small" != 1 ] || set -- "$1" 0
  awk -v x="$1" -v least="$2" 'BEGIN {print (x != "" && x + 0 >= least + 0) ? "MET" : "MISSED"}'
}

# Floors of an H200 in tokens per second, at 65,536 tokens a step. Where measured peaks are lower than those assumed (a
# roofline above `planned` seconds), the floor is the same share of the roofline.
speed() {
  local line all="" name batch floor share planned rate verdict first="" bad=0
  for name in 124m 355m 1558m llama-1b llama-7b; do
    case $name in
      124m) floor=550000 share=0.74 planned=0.0881 batch=$(batch_of 64) ;;
      355m) floor=215000 share=0.79 planned=0.2418 batch=$(batch_of 64) ;;
      1558m) floor=56000 share=0.83 planned=0.976 batch=$(batch_of "$(fits 32)") ;;
      llama-1b) floor=70000 share=0.84 planned=0.789 batch="$(batch_of "$(fits 32)" 32) --model.seq 2048" ;;
      *) floor=14000 share=0.85 planned=3.969 batch="$(batch_of 1 16) --model.seq 4096" ;;
    esac
    [ -z "$small" ] || [[ $name != llama* ]] || continue
    [ $name != llama-7b ] || [ "${gib:-0}" -ge 120 ] || { all+="7B: needs 141 GB; "; continue; }
    bench $name $batch || { bad=1; continue; }
    rate=$(record tokens_per_second)
    verdict="$(thousands $floor) $(meets "$rate" $floor)"
    [[ $verdict = *MET ]] || [ "$(meets "$(record r)" $planned)" = MISSED ] ||
      verdict="$(thousands $floor) not, but R is $(part "$(record r)") s here: $share of it $(meets "$(record sol)" $share)"
    line="$name$(by_whom) $(thousands "$rate") tokens/s, $verdict"
    line+=", sol $(part "$(record sol)"), mfu $(part "$(record mfu)"), host-bound $(part "$(record host_bound)")"
    print_now "$line$(clocks)"
    all+="$line; "
    [ $name != 124m ] || first=$rate
  done
  bench 124m $(batch_of 64) --train.deterministic true || { echo "figure: $all"; return 1; }
  rate=$(record tokens_per_second)
  echo "figure: ${all}124m with --train.deterministic true: $(thousands "$rate")," \
    "$(ratio "$rate" "${first:-$rate}") of that"
  return $bad
}
small_batch() {
  local sol rate
  compgen -G "$cache/ceilings-*-bf16.json" >/dev/null || ceilings || return 1
  bench 124m $(batch_of 4 4) || return 1
  sol=$(record sol) rate=$(record tokens_per_second)
  [ -n "$sol" ] || { fail "no roofline for this device and shape"; return 1; }
  bench 124m $(batch_of 4 4) --train.deterministic true || return 1
  echo "figure: 124m, 4 x 1024 a step: $(thousands "$rate") tokens/s, $(part "$sol") of its roofline," \
    "0.5 $(meets "$sol" 0.5); with --train.deterministic true $(thousands "$(record tokens_per_second)")"
}
# Defaults that were chosen by arithmetic, each against another value. No floor.
choices() {
  local line="" flag rate base
  bench 124m $(batch_of 64) || return 1
  base=$(record tokens_per_second)
  for flag in "--device.gemm_tune heuristic" "--device.graphs off" "--model.loss_chunk 16384" \
    "--model.loss_chunk 65536"; do
    [ -z "$small" ] || flag=${flag/loss_chunk */loss_chunk 8}
    bench 124m $(batch_of 64) $flag || return 1
    rate=$(record tokens_per_second)
    line+="; $flag $(ratio "$rate" "$base")"
  done
  trainer bench ops $(config_of 1558m) $wider $(batch_of "$(fits 32)") --precision.fp8 delayed >fp8-ops.txt ||
    fail "bench ops of the 1558m in fp8" || return 1
  cat fp8-ops.txt
  echo "figure: 124m $(thousands "$base") tokens/s$line; 1558m in fp8, ms of ops: $(sed -n 's/^all ops *//p' fp8-ops.txt)"
}
fp8() {
  local options bf16 rate ratio
  options="$wider $(batch_of "$(fits 32)")"
  bench 1558m $options || return 1
  bf16=$(record tokens_per_second)
  bench 1558m $options --precision.fp8 delayed || return 1
  rate=$(record tokens_per_second)
  ratio=$(ratio "$rate" "$bf16")
  echo "figure: 1558m $(thousands "$bf16") tokens/s in bf16, $(thousands "$rate") in fp8: $ratio times," \
    "1.2 $(meets "$ratio" 1.2)"
}

# Ratios of tokens per second, ours over the baseline's, in pairs. GPT_GPU_PEER: the command line of another baseline
# for the 124M at 65,536 tokens a step; its output has a known format or lines "N tokens/s". For llm.c, built with
# cuDNN, run three times with -ge 0, 1 and 2, of which the best counts (-v 0 divides by zero; configs/llmc-124m.json is
# the same run here):
#   train_gpt2cu -i TRAIN.bin -j VAL.bin -e d12 -b 64 -t 1024 -d 65536 -x 30 -r 0 -v 1000000 -s 0 -h 0 -ge 1
duel() {  # NAME NOTE COMMAND
  local low pairs=5
  [ -z "$small" ] || pairs=2
  timeout -k 10 "$(left 540)" "$gpttrain" bench peer $(config_of 124m) $(batch_of 64) --pairs $pairs --steps "$steps" \
    --warmup "$warm" --note "$2" --out "$logs/peer.jsonl" --run "$3" </dev/null | tee duel.txt
  [ "${PIPESTATUS[0]}" = 0 ] || {
    fail "$1, pairs before that: $(sed -n 's/^pair.*ratio //p' duel.txt | paste -sd' ')"
    return 1
  }
  low=$(sed -nE 's/^ratio .*quartiles ([0-9.]+) to.*/\1/p' duel.txt)
  print_now "$1: $(sed -n 's/^ratio *//p' duel.txt); at least 1 $(meets "$low" 1)"
  echo "$1: $(sed -n 's/^ratio *//p' duel.txt); at least 1 $(meets "$low" 1)" >>duels.txt
}
torch_versions() { python3 -c 'import torch; print("torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())'; }
peer() {
  local torch="torch.compile, bf16 autocast, f32 residual stream and weights, fused AdamW, 8 bytes of state a weight"
  : >duels.txt
  if [ -n "$small" ]; then
    duel echo "a stand-in" "echo 100 tokens/s" || return 1
  elif python3 -c 'import torch; assert torch.cuda.is_available()'; then
    duel PyTorch "$(torch_versions), $torch" \
      "python3 $root/tests/bench/torch_gpt2.py 64 1024 --device cuda --steps 20 --warmup 5" || return 1
  fi
  [ -z "${GPT_GPU_PEER:-}" ] || duel other "$GPT_GPU_PEER" "$GPT_GPU_PEER" || return 1
  if [ -s duels.txt ]; then
    echo "figure: $(paste -sd';' duels.txt)"
  else
    echo "SKIP python3 has no PyTorch with a GPU, and GPT_GPU_PEER names no other baseline"
  fi
}
