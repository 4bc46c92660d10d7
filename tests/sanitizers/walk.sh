#!/usr/bin/env bash
# Runs every subcommand of one binary as a user would: text, tokenizer, token files, training on 8 ranks with evaluation
# and saving, Ctrl-C at a random time, resume, generate, export, import, ckpt subcommands, verify. For sanitized builds:
# a finding exits with a code that is expected nowhere (99) and is in the output.
#   tests/sanitizers/walk.sh build/asan/gpttrain            ranks as MPI processes
#   tests/sanitizers/walk.sh build/tsan/gpttrain threads    ranks as threads
set -uo pipefail
cd "$(dirname "$0")/../.."
gpttrain=$(realpath "$1")
ranks=${2:-processes}
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
commands=0

# want CODES COMMAND…: runs it; the exit code must be one of CODES.
want() {
  local codes=" $1 " code=0
  shift
  "$gpttrain" "$@" >out 2>&1 </dev/null || code=$?
  commands=$((commands + 1))
  if [[ $codes != *" $code "* ]] || grep -qE 'Sanitizer|runtime error:' out; then
    cat out
    echo "walk: gpttrain $* ended with $code, expected one of$codes"
    exit 1
  fi
  echo "ok $code: gpttrain $*"
}

cat "$root"/*.md "$root"/*/README.md >text.txt
want 0 tokenizer train --input text.txt --vocab 400 --output tok.model
want 0 tokenizer encode --tokenizer tok.model --text "the pipeline schedule"
want 0 data prepare --input text.txt --split-docs blank-line --tokenizer tok.model --output tokens
want 0 data inspect tokens --tokenizer tok.model --doc 1

train=(--config "$root/configs/tiny.json" --device.kind cpu --launch.ranks "$ranks" --tp 2 --pp 2 --dp 2
  --model.vocab 400 --data.train tokens --data.tokenizer tok.model --train.steps 24 --train.eval_every 5
  --train.eval_steps 2 --checkpoint.every 4 --log.name walk --train.micro_batch 1 --train.grad_accum 2)
# Interrupted while it starts, trains, evaluates or saves. 75: saved and stopped; 0: had finished before.
"$gpttrain" "${train[@]}" >first 2>&1 </dev/null &
pid=$!
for _ in $(seq 600); do
  sleep 0.2
  grep -q 'step' runs/walk/log.jsonl 2>/dev/null && break
done
sleep "0.$((RANDOM % 100))"
kill -INT $pid
wait $pid
code=$?
commands=$((commands + 1))
if [[ " 0 75 " != *" $code "* ]] || grep -qE 'Sanitizer|runtime error:' first; then
  cat first
  echo "walk: interrupted training ended with $code, expected 0 or 75"
  exit 1
fi
echo "ok $code: gpttrain ${train[*]}, interrupted"
want 0 "${train[@]}"
want 0 "${train[@]}" --train.steps 30 --tp 1 --pp 4 --dp 1 --train.grad_accum 4 --zero.stage 0 --optim.lr 2e-3 \
  --checkpoint.allow_change optim train zero schedule parallel
want 0 eval --load runs/walk --data.train tokens --split valid --steps 1
want 0 generate --load runs/walk --prompt "The" --max-tokens 12 --seed 3
want 0 watch runs/walk --once
want 0 report runs/walk
want 0 compare runs/walk runs/walk --html both.html
want 0 ckpt ls runs/walk
want 0 ckpt inspect runs/walk --stats
want 0 ckpt verify runs/walk --all
want "0 1" ckpt diff runs/walk/checkpoints/step-000000024 runs/walk/checkpoints/step-000000030
want 0 export --load runs/walk --format safetensors --output hf
want 0 export --load runs/walk --format hdf5 --output weights.h5
want 0 import --from hf --output imported --tokenizer tok.model
want 0 import --from weights.h5 --output imported5
want 0 ckpt prune runs/walk --keep 1
want 0 verify --config "$root/configs/tiny.json" --device.kind cpu --tp 2 --pp 2 --zero.stage 3 --dp 2
want 0 schedule --schedule zb-h1 --pp 4 --microbatches 8
want 2 --config text.txt
want 65 import --from tokens.bin --output nothing
echo "$commands commands, 0 findings"
