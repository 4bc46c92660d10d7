#!/usr/bin/env python3
"""The peer of `gpttrain bench`: seconds a training step of GPT-2 124M in PyTorch on the CPU, FP32, AdamW, clipping.

    /usr/bin/python3 tests/bench/torch_gpt2.py BATCH SEQ THREADS STEPS      (Debian's python3-torch, or any other torch)
"""
import math
import sys
import time

import torch
from torch.nn import functional as F

batch, seq, threads, steps = (int(x) for x in sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(1)
L, C, H, V = 12, 768, 12, 50257


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(C), torch.nn.LayerNorm(C)
        self.qkv, self.out = torch.nn.Linear(C, 3 * C), torch.nn.Linear(C, C)
        self.up, self.down = torch.nn.Linear(C, 4 * C), torch.nn.Linear(4 * C, C)

    def forward(self, x, mask):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, H, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).split(C, -1))
        a = (q @ k.transpose(-1, -2) / math.sqrt(C // H)).masked_fill(mask, -math.inf).softmax(-1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(b, s, C))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = torch.nn.Embedding(V, C), torch.nn.Embedding(seq, C)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(L)])
        self.norm = torch.nn.LayerNorm(C)

    def forward(self, tokens, targets):
        mask = torch.triu(torch.ones(seq, seq, dtype=torch.bool), 1)
        x = self.tok(tokens) + self.pos.weight
        for b in self.blocks:
            x = b(x, mask)
        return F.cross_entropy((self.norm(x) @ self.tok.weight.T).flatten(0, 1), targets.flatten())


model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
times = []
for _ in range(steps + 2):
    tokens, targets = torch.randint(0, V, (2, batch, seq))
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    model(tokens, targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    times.append(time.perf_counter() - begin)
times = sorted(times[2:])
print(f"torch {torch.__version__}, B {batch} T {seq}, {threads} threads: median {times[len(times) // 2]:.3f} s a step ({steps} steps)")
