#!/usr/bin/env python3
"""Writes gpt_losses.txt: the losses of 20 steps of the tiny GPT-2 of torch_gpt2.safetensors under every optimizer, in float64.

    apt-get install python3-torch && /usr/bin/python3 tests/golden/make_gpt_losses.py tests/golden

Lines of "NAME loss loss ...". Batch of step t: samples t mod 10 of the fixture. Weight decay on matrices only. The gradient norm is
clipped at 1, apex LAMB by its own rule. NAME_groups: parameter groups, PyTorch's param_groups. Adam, AdamW, SGD and Adagrad are PyTorch's; Lion,
Muon and the three LAMBs are implemented here from their equations (Chen et al. 2023; Jordan et al. 2024; You et al. 2020, and the apex
and DeepSpeed variants).
"""
import json
import math
import struct
import sys

import torch

import make_torch_gpt2 as gpt

STEPS = 20


def read(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        kind = torch.int32 if t["dtype"] == "I32" else torch.float32
        out[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=kind).reshape(t["shape"])
    return out


def groups(w, decay):
    return [{"params": [t for t in w if t.dim() >= 2], "weight_decay": decay},
            {"params": [t for t in w if t.dim() < 2], "weight_decay": 0.0}]


def named_groups(w, lr, decay, betas=True):
    """optim.groups "embed lr_scale=0.1 weight_decay=0", "mlp weight_decay=0.3 betas=0.8/0.99" and the rest as above."""
    def first(t):
        return next((k for k, pattern in enumerate(("embed", "mlp")) if pattern in t.label), 2)
    parts = [[t for t in w if first(t) == k] for k in range(3)]
    mlp = {"params": parts[1], "lr": lr, "weight_decay": 0.3}
    if betas:
        mlp["betas"] = (0.8, 0.99)
    return [{"params": parts[0], "lr": 0.1 * lr, "weight_decay": 0.0}, mlp, *groups(parts[2], decay)]


class Lion:
    def __init__(self, w, lr, b1, b2, decay):
        self.w, self.lr, self.b1, self.b2, self.decay = w, lr, b1, b2, decay
        self.m = [torch.zeros_like(t) for t in w]

    def step(self):
        for p, m in zip(self.w, self.m):
            wd = self.decay if p.dim() >= 2 else 0
            p -= self.lr * ((self.b1 * m + (1 - self.b1) * p.grad).sign() + wd * p)
            m.mul_(self.b2).add_(p.grad, alpha=1 - self.b2)


class Lamb:
    """variant: paper, apex (decoupled decay, averaged gradients), deepspeed (trust ratio clamped, moments not corrected)."""

    def __init__(self, w, variant, lr, b1, b2, eps, decay):
        self.w, self.variant, self.lr, self.b1, self.b2, self.eps, self.decay = w, variant, lr, b1, b2, eps, decay
        self.m = [torch.zeros_like(t) for t in w]
        self.v = [torch.zeros_like(t) for t in w]
        self.t = 0

    def step(self):
        self.t += 1
        c1, c2 = 1 - self.b1 ** self.t, 1 - self.b2 ** self.t
        for p, m, v in zip(self.w, self.m, self.v):
            wd = self.decay if p.dim() >= 2 else 0
            m.mul_(self.b1).add_(p.grad, alpha=1 - self.b1)
            v.mul_(self.b2).addcmul_(p.grad, p.grad, value=1 - self.b2)
            lr = self.lr
            if self.variant == "deepspeed":
                u = m / (v.sqrt() + self.eps) + wd * p
                lr *= math.sqrt(c2) / c1
            else:
                u = (m / c1) / ((v / c2).sqrt() + self.eps) + wd * p
            a, b = p.norm().item(), u.norm().item()
            ratio = a / b if a > 0 and b > 0 else 1
            if self.variant == "deepspeed" and a > 0 and b > 0:
                ratio = min(max(ratio, 0.01), 10)
            if self.variant == "apex" and wd == 0:
                ratio = 1
            p -= lr * ratio * u


class Muon:
    """Jordan et al. 2024: weights of linear layers inside blocks, Q, K and V apart; AdamW for all others."""

    def __init__(self, w, lr, momentum, nesterov, decay, original, adamw):
        self.lr, self.momentum, self.nesterov, self.decay, self.original = lr, momentum, nesterov, decay, original
        self.w = [t for t in w if t.dim() == 2 and t.label.startswith("layers.")]
        self.m = [torch.zeros_like(t) for t in self.w]
        self.rest = torch.optim.AdamW(groups([t for t in w if all(t is not o for o in self.w)], decay), **adamw)

    def orthogonal(self, g):
        rows, cols = g.shape
        x = g.T if rows > cols else g
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        scale = max(1, rows / cols) ** 0.5 if self.original else 0.2 * max(rows, cols) ** 0.5
        return scale * (x.T if rows > cols else x)

    def step(self):
        self.rest.step()
        for p, m in zip(self.w, self.m):
            m.lerp_(p.grad, 1 - self.momentum)
            update = p.grad.lerp(m, self.momentum) if self.nesterov else m
            parts = update.chunk(3) if ".qkv." in p.label else [update]
            p.mul_(1 - self.lr * self.decay)
            p.sub_(torch.cat([self.orthogonal(g) for g in parts]), alpha=self.lr)


def optimizers():
    o = torch.optim
    adam = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    lamb = dict(lr=1e-2, b1=0.9, b2=0.95, eps=1e-6, decay=0.1)
    yield "adamw", lambda w: o.AdamW(groups(w, 0.1), **adam)
    yield "adam", lambda w: o.Adam(groups(w, 0.01), **adam)
    yield "sgd", lambda w: o.SGD(groups(w, 0.01), lr=0.1, momentum=0.9, nesterov=True)
    yield "adamw_groups", lambda w: o.AdamW(named_groups(w, 3e-3, 0.1), **adam)
    yield "adam_groups", lambda w: o.Adam(named_groups(w, 3e-3, 0.01), **adam)
    yield "sgd_groups", lambda w: o.SGD(named_groups(w, 0.1, 0.01, betas=False), lr=0.1, momentum=0.9, nesterov=True)
    yield "adagrad", lambda w: o.Adagrad(groups(w, 0.01), lr=1e-2, eps=1e-10)
    yield "lion", lambda w: Lion(w, 3e-4, 0.9, 0.99, 0.1)
    for name, nesterov in (("muon", True), ("muon_original", False)):
        yield name, lambda w, n=nesterov: Muon(w, 3e-3, 0.95, n, 0.1, not n, adam)
    for variant in ("paper", "apex", "deepspeed"):
        yield "lamb_" + variant, lambda w, v=variant: Lamb(w, v, **lamb)


def clip(w, slack):
    norm = math.sqrt(sum(t.grad.square().sum().item() for t in w))
    for t in w:
        t.grad *= min(1, 1 / (norm + slack))


def main(folder):
    fixture = read(folder + "/torch_gpt2.safetensors")
    names = [n[len("weight/"):] for n in fixture if n.startswith("weight/")]
    samples = fixture["samples"].long()
    with open(folder + "/gpt_losses.txt", "w") as out:
        for name, make in optimizers():
            w = {n: fixture["weight/" + n].double().requires_grad_() for n in names}
            for n, t in w.items():
                t.label = n
            optimizer = make(list(w.values()))
            losses = []
            for t in range(STEPS):
                batch = samples[t % len(samples)]
                for p in w.values():
                    p.grad = None
                loss = gpt.loss_of(w, batch[:, :-1], batch[:, 1:])
                loss.backward()
                with torch.no_grad():
                    clip(list(w.values()), 0 if name == "lamb_apex" else 1e-6)
                    optimizer.step()
                losses.append(loss.item())
            print(name, *["%.9g" % x for x in losses], file=out)


if __name__ == "__main__":
    main(sys.argv[1])
