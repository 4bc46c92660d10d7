#!/usr/bin/env python3
"""Trains GPT-2 with transformers: the losses that `gpttrain --from FOLDER` has on the same weights, tokens and steps.

    python3 tests/bench/hf_losses.py FOLDER TOKENS.bin --steps 100 --device cuda

Creates FOLDER with random weights if it is missing. TOKENS.bin: 16-bit tokens; sample i begins at token i x SEQ
(data.order sequential), after the last one comes the first again. AdamW (fused, 0.9, 0.95, eps 1e-8, decay 0.1 of tensors with two dimensions), a constant rate
after the warmup, clipping at 1, on CUDA bf16 autocast over FP32 weights. Prints "STEP LOSS" per step.
"""
import argparse
import contextlib
import os

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder")
parser.add_argument("tokens")
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--hidden", type=int, default=768)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--vocab", type=int, default=50257)
parser.add_argument("--seq", type=int, default=1024)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--micro", type=int, default=8)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--lr", type=float, default=6e-4)
parser.add_argument("--warmup", type=int, default=0, help="steps in which the rate rises to --lr")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
args = parser.parse_args()

torch.manual_seed(1)
if not os.path.isdir(args.folder):
    GPT2LMHeadModel(GPT2Config(
        vocab_size=args.vocab, n_positions=args.seq, n_embd=args.hidden, n_layer=args.layers, n_head=args.heads,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).save_pretrained(args.folder)
model = GPT2LMHeadModel.from_pretrained(args.folder, torch_dtype=torch.float32).to(args.device).train()
parameters = list(model.parameters())
if args.compile:
    model = torch.compile(model)
optimizer = torch.optim.AdamW(
    [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
     {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
    lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
tokens = torch.from_numpy(numpy.fromfile(args.tokens, numpy.uint16).astype(numpy.int64))
samples = (len(tokens) - 1) // args.seq
cast = torch.autocast("cuda", torch.bfloat16) if args.device == "cuda" else contextlib.nullcontext()
for step in range(args.steps):
    total = 0.0
    for group in optimizer.param_groups:
        group["lr"] = args.lr * min(1.0, (step + 1) / max(1, args.warmup))
    optimizer.zero_grad()
    for first in range(step * args.batch, (step + 1) * args.batch, args.micro):
        starts = [i % samples * args.seq for i in range(first, first + args.micro)]
        rows = torch.stack([tokens[at:at + args.seq + 1] for at in starts])
        rows = rows.to(args.device)
        with cast:
            logits = model(rows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        (loss * args.micro / args.batch).backward()
        total += loss.detach() * args.micro / args.batch
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    print(step + 1, float(total), flush=True)
