#!/usr/bin/env bash
# From an empty machine to a trained model: packages, build, an English corpus, a tokenizer, training on tensor,
# pipeline and data parallel ranks, an interruption and a resume, generated text. Completed steps are skipped on the
# next run.
#   ./launch/demo.sh            everything
#   ./launch/demo.sh --fresh    delete the demo's run (not the build, the corpus or the tokenizer) and train again
# In the portable bundle, which has the program and its libraries, it needs no package and builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n== %s\n' "$*"; }
started=$SECONDS
work=runs/demo-data
run=runs/dictionary
[ "${1:-}" = "--fresh" ] && rm -rf "$run"

if [ -x bin/gpttrain ]; then
  say "1/7 packages, 2/7 build: the bundle has both"
  gpttrain=bin/gpttrain gpu=no
  ! grep -qE '^CUDA .*sm_[0-9]+' < <($gpttrain --version) || gpu=yes
else
  say "1/7 packages"
  ./launch/setup.sh
  echo "everything that gpttrain needs is installed"

  say "2/7 build"
  gpttrain=build/cpu/gpttrain gpu=no
  if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then gpu=yes; fi
  cmake --preset cpu >/dev/null
  targets=(gpttrain)
  if [ $gpu = yes ] && ! cmake --build --preset cpu --target help | grep -q '^gpttrain_cuda:'; then
    echo "there is a GPU, but no CUDA toolkit (12.8 or later) to build for it: training on the CPU"
    gpu=no
  fi
  [ $gpu = no ] || targets+=(gpttrain_cuda)
  cmake --build --preset cpu -j "$(nproc)" --target "${targets[@]}"
fi

say "3/7 corpus: The Collaborative International Dictionary of English (40 MB of prose and quotations, GPL-2+)"
mkdir -p "$work"
corpus=$work/gcide.txt
sum=3e6b2cdcbc1b3664c2f1466e3c8e44012e815c4c67fa83fa61f39777cd6e8517  # of gcide.dict.dz in dict-gcide 0.48.5+nmu2
if [ ! -s "$corpus" ]; then
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  chmod 755 "$tmp"
  (cd "$tmp" && apt-get download -qq dict-gcide 2>/dev/null) || { echo "demo: cannot download the package dict-gcide; is the network there?" >&2; exit 74; }
  dpkg -x "$tmp"/dict-gcide_*.deb "$tmp/x"
  found=$(sha256sum <"$tmp/x/usr/share/dictd/gcide.dict.dz" | cut -d' ' -f1)
  [ "$found" = "$sum" ] || { echo "demo: gcide.dict.dz has SHA-256 $found, expected $sum: another version of the package?" >&2; exit 65; }
  # One document per entry: entries begin in the first column. Lines with only a source tag such as [1913 Webster] are
  # removed.
  gzip -dc <"$tmp/x/usr/share/dictd/gcide.dict.dz" | tail -n +160 |
    awk '/^ *\[[^]]*(Webster|WordNet|PJC|GG|RP|AS)[^]]*\]$/ || /^$/ {next} /^[^ ]/ {print ""} {gsub(/  +/, " "); print}' >"$corpus.part"
  mv "$corpus.part" "$corpus"
fi
echo "$(wc -c <"$corpus") bytes, $(wc -w <"$corpus") words in $corpus"

say "4/7 tokenizer: SentencePiece BPE, 4096 pieces"
[ -s "$work/tok.model" ] || $gpttrain tokenizer train --input "$corpus" --vocab 4096 --sample-mb 8 --type bpe --output "$work/tok.model"
echo "in $work/tok.model"

say "5/7 data: tokens in Megatron's .bin/.idx format"
[ -s "$work/gcide.idx" ] || $gpttrain data prepare --input "$corpus" --split-docs blank-line --tokenizer "$work/tok.model" --output "$work/gcide"
$gpttrain data inspect "$work/gcide" --tokenizer "$work/tok.model" | tail -n 12

any_layout=("$gpttrain" --config configs/demo.json --data.train "$work/gcide" --data.tokenizer "$work/tok.model" --log.name dictionary)
where="8 ranks on the CPU"
if [ $gpu = yes ]; then
  any_layout+=(--device.kind cuda --launch.ranks threads)  # which share a GPU, or have one each
  where="8 ranks on the GPUs of this machine"
fi
layout=(--tp 2 --pp 2 --dp 2)
train=("${any_layout[@]}" "${layout[@]}")
say "6/7 training: ${layout[*]} ($where), interrupted once on purpose"
if [ ! -e "$run/checkpoints/latest" ]; then
  echo "\$ ${train[*]}"
  echo "(after 40 seconds this script sends what Ctrl-C would send: the step is finished, a checkpoint is written)"
  code=0
  timeout --foreground --preserve-status --signal=INT 40 "${train[@]}" || code=$?
  [ $code -eq 0 ] || [ $code -eq 75 ] || exit $code
fi
echo "the same command again: it resumes from its checkpoint and trains to the end"
"${train[@]}"

say "7/7 text from the checkpoint"
$gpttrain ckpt ls "$run"
for prompt in "Sail \\" "Gentle, a. " "1. A kind of "; do
  echo "---"
  $gpttrain generate --load "$run" --prompt "$prompt" --max-tokens 60 --temperature 0.7 --top-k 40 --seed 7
done

say "done in $((SECONDS - started)) s. What to try next"
cat <<TXT
  $gpttrain schedule --pp 4 --microbatches 8                 a pipeline schedule as a picture
  ${any_layout[*]} --pp 4 --dp 2 --train.steps 700   the same run on another layout, further
  $gpttrain ckpt inspect $run                              what is in a checkpoint
  tensorboard --logdir runs                                  curves (pip install tensorboard)
  $gpttrain train --help-all                                 every option
TXT
