#!/usr/bin/env python3
"""Baseline for `gpttrain bench`: seconds per training step of GPT-2 in PyTorch: FP32 weights, AdamW, clipping at 1.

    python3 tests/bench/torch_gpt2.py BATCH SEQ --threads 2 --steps 10 [--bf16] [--compile]     on the CPU (PyTorch 2.5 or later)
    python3 tests/bench/torch_gpt2.py 64 1024 --device cuda [--model 1558m --accumulate 2]

F.scaled_dot_product_attention, fused AdamW. On a GPU: bf16 autocast, torch.compile, vocabulary padded to 50304.
"""
import argparse
import contextlib
import time

import torch
from torch.nn import functional as F

SIZES = {"124m": (12, 768, 12), "355m": (24, 1024, 16), "774m": (36, 1280, 20), "1558m": (48, 1600, 25)}  # layers, hidden, heads

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("batch", type=int)
parser.add_argument("seq", type=int)
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--warmup", type=int, default=2)
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
parser.add_argument("--model", choices=SIZES, default="124m")
parser.add_argument("--accumulate", type=int, default=1, help="microbatches of BATCH / this")
parser.add_argument("--bf16", action="store_true", help="autocast to bf16")
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()

cuda = args.device == "cuda"
seq, steps = args.seq, args.steps
L, C, H = SIZES[args.model]
V = 50304 if cuda else 50257
if args.threads:
    torch.set_num_threads(args.threads)
torch.manual_seed(1)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(C), torch.nn.LayerNorm(C)
        self.qkv, self.out = torch.nn.Linear(C, 3 * C), torch.nn.Linear(C, C)
        self.up, self.down = torch.nn.Linear(C, 4 * C), torch.nn.Linear(4 * C, C)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, H, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).split(C, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, C))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = torch.nn.Embedding(V, C), torch.nn.Embedding(seq, C)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(L)])
        self.norm = torch.nn.LayerNorm(C)

    def forward(self, tokens, targets):
        x = self.tok(tokens) + self.pos.weight
        for b in self.blocks:
            x = b(x)
        return F.cross_entropy((self.norm(x) @ self.tok.weight.T).flatten(0, 1), targets.flatten())


def synchronize():
    if cuda:
        torch.cuda.synchronize()


model = Gpt().to(args.device)
for p in model.parameters():  # GPT-2's: PyTorch's embeddings of variance 1 saturate the softmax, and denormal numbers are slow
    if p.dim() > 1:
        torch.nn.init.normal_(p, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
loss_of = torch.compile(model) if cuda or args.compile else model
micro = args.batch // args.accumulate
times = []
for _ in range(steps + args.warmup):
    tokens, targets = torch.randint(0, 50257, (2, args.batch, seq), device=args.device)
    synchronize()
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    for k in range(args.accumulate):
        rows = slice(k * micro, (k + 1) * micro)
        with torch.autocast(args.device, torch.bfloat16) if cuda or args.bf16 else contextlib.nullcontext():
            loss = loss_of(tokens[rows], targets[rows]) / args.accumulate
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    synchronize()
    times.append(time.perf_counter() - begin)
median = sorted(times[args.warmup:])[steps // 2]
where = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads"
print(f"torch {torch.__version__}, GPT-2 {args.model}, B {args.batch} T {seq}, {where}: median {median:.4f} s a step ({steps} steps)")
print(f"{args.batch * seq / median:.0f} tokens/s")
