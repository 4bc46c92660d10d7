#!/usr/bin/env bash
# nanoGPT's published character-level run for a CPU, three seeds: 4 layers, 4 heads, 128 wide, context 64, 2,000 steps of 12
# sequences, no dropout, AdamW 1e-3 to 1e-4. Fails unless the mean validation losses are within the limits:
#   over 20 batches of 12 windows, as nanoGPT evaluates (random ones there, the first ones here): 1.90; its figure is 1.88
#   over all windows of the validation part: PyTorch's mean (build/hf) + 0.02
#   tests/bench/characters.sh [PROGRAM]
#   SHAKESPEARE=input.txt    the corpus of the published figure, by its SHA-256. No package has it; without it: as many
#                            characters of the demo's corpus, and the second limit alone
#   SEEDS="1 2 3"  STEPS=2000
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/cpu/gpttrain}
python=build/hf/bin/python
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
steps=${STEPS:-2000}
read -ra seeds <<<"${SEEDS:-1 2 3}"

if [ -n "${SHAKESPEARE:-}" ]; then
  text=$SHAKESPEARE name="tiny Shakespeare"
  echo "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed  $text" | sha256sum -c --quiet
else
  text=${CORPUS:-runs/demo-data/gcide.txt} name="the demo's corpus"
  [ -s "$text" ] || { echo "SKIPPED: neither SHAKESPEARE=FILE nor $text; ./launch/demo.sh makes the latter"; exit 77; }
  [ -x $python ] || { echo "SKIPPED: no $python for the baseline; tests/readers/setup.sh makes it"; exit 77; }
fi
vocab=$(python3 tests/bench/characters.py tokens "$text" 1115394 "$out")
data=(--data.train "$out/train.bin" --data.valid "$out/valid.bin")

# Prints a seed's validation loss over all windows, over those of 20 batches, and the milliseconds that training took.
seed_of() {
  local run="$out/runs/seed-$1" began
  began=$(date +%s%N)
  "$program" --model.arch gpt2 --model.layers 4 --model.heads 4 --model.hidden 128 --model.seq 64 --model.vocab "$vocab" \
    --model.qkv_bias false --model.out_bias false --model.mlp_bias false --model.activation gelu_erf \
    --optim.type adamw --optim.lr 1e-3 --optim.betas 0.9,0.99 --optim.weight_decay 0.1 --optim.grad_clip 1 \
    --schedule.type cosine --schedule.warmup_steps 100 --schedule.min_lr 1e-4 \
    --train.micro_batch 12 --train.global_batch 12 --train.steps "$steps" --train.seed "$1" \
    --train.eval_every "$steps" --train.eval_steps 145 "${data[@]}" \
    --device.kind cpu --device.threads 2 --checkpoint.every "$steps" --checkpoint.resume never \
    --log.dir "$out/runs" --log.name "seed-$1" --log.tensorboard false --quiet >"$out/log-$1.txt" 2>&1 ||
    { tail -20 "$out/log-$1.txt" >&2; return 1; }
  local ms=$((($(date +%s%N) - began) / 1000000)) few
  few=$("$program" eval --load "$run" --split valid --steps 20 "${data[@]}" --device.kind cpu |
    sed -nE 's/^loss ([0-9.]+) .*/\1/p')
  echo "$(sed -nE '/"type": "eval"/ s/.*"loss": ([0-9.]+).*/\1/p' "$run/log.jsonl" | tail -1) $few $ms"
}
mean() { awk -v k="$2" '{s += $k} END {printf "%.4f", s / NR}' "$1"; }

for seed in "${seeds[@]}"; do
  seed_of "$seed" >>"$out/ours.txt"
  tail -1 "$out/ours.txt" | awk -v seed="$seed" '{print "seed " seed ": " $1 ", of 20 batches " $2 ", " $3 " ms"}'
done
all=$(mean "$out/ours.txt" 1) few=$(mean "$out/ours.txt" 2) of_all=none of_few=1.90 against=""
seconds=$(awk '$3 > m {m = $3} END {printf "%.1f", m / 1000}' "$out/ours.txt")
[ -n "${SHAKESPEARE:-}" ] || of_few=none
if [ -x $python ]; then
  for seed in "${seeds[@]}"; do
    $python tests/bench/characters.py train "$out" "$seed" | tee -a "$out/torch.txt" | sed "s/^/PyTorch, seed $seed: /"
  done
  of_all=$(awk -v x="$(mean "$out/torch.txt" 1)" 'BEGIN {print x + 0.02}')
  against="; PyTorch $(mean "$out/torch.txt" 1) and $(mean "$out/torch.txt" 2), $(mean "$out/torch.txt" 3) ms a step"
fi
echo "characters of $name: validation loss $all, of 20 batches $few (limits $of_all, $of_few$against), at most $seconds s a seed"
awk -v a="$all" -v f="$few" -v la="$of_all" -v lf="$of_few" \
  'function within(x, most) {return x > 0 && (most == "none" || x <= most + 0)} BEGIN {exit !(within(a, la) && within(f, lf))}'
