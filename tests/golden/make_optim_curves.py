#!/usr/bin/env python3
"""Writes optim_curves.txt: four weights under PyTorch's optimizers for 20 steps, in float64.

    apt-get install python3-torch && /usr/bin/python3 tests/golden/make_optim_curves.py tests/golden/optim_curves.txt

Blocks of "curve NAME", then a line "t w0 w1 w2 w3" for each step. Start (.5, -1, 2, .25); gradient of step t and element i:
0.1 (i + 1) sin(1.7 t + i). The names are those of the table in tests/optim/optimizer_family_test.cpp.
Muon is implemented here from its equations, as PyTorch has had it only since 2.9.
"""
import math
import sys

import torch
from torch.optim.lr_scheduler import OneCycleLR

STEPS = 20


class Muon:
    """Jordan et al. 2024 on the four weights as a matrix [2, 2], with Nesterov momentum."""

    def __init__(self, w):
        self.w, self.m = w, torch.zeros_like(w)

    @torch.no_grad()
    def step(self):
        g = self.w.grad
        self.m.lerp_(g, 1 - 0.95)
        x = g.lerp(self.m, 0.95).reshape(2, 2)
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        self.w.mul_(1 - 0.01 * 0.1).sub_(x.reshape(4), alpha=0.01 * 0.2 * 2 ** 0.5)


def curve(out, name, make, cycle=None):
    w = torch.nn.Parameter(torch.tensor([0.5, -1, 2, 0.25], dtype=torch.float64))
    optimizer = make([w])
    schedule = cycle(optimizer) if cycle else None
    print("curve", name, file=out)
    for t in range(1, STEPS + 1):
        w.grad = torch.tensor([0.1 * (i + 1) * math.sin(1.7 * t + i) for i in range(4)], dtype=torch.float64)
        optimizer.step()
        if schedule and t < STEPS:
            schedule.step()
        print(t, *["%.17g" % x for x in w.tolist()], file=out)


def one_cycle(optimizer):
    return OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS, pct_start=0.4)


def main():
    o = torch.optim
    with open(sys.argv[1], "w") as out:
        curve(out, "adamw", lambda p: o.AdamW(p, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1))
        curve(out, "adam", lambda p: o.Adam(p, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1))
        curve(out, "sgd", lambda p: o.SGD(p, lr=0.01))
        curve(out, "sgd_momentum", lambda p: o.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1))
        curve(out, "sgd_dampening", lambda p: o.SGD(p, lr=0.01, momentum=0.8, dampening=0.3))
        curve(out, "sgd_nesterov", lambda p: o.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True))
        curve(out, "muon", lambda p: Muon(p[0]))
        curve(out, "adagrad", lambda p: o.Adagrad(p, lr=0.01, eps=1e-8, weight_decay=0.1))
        curve(out, "adamw_one_cycle", lambda p: o.AdamW(p, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), one_cycle)
        curve(out, "sgd_one_cycle", lambda p: o.SGD(p, lr=0.01, momentum=0.9), one_cycle)


main()
