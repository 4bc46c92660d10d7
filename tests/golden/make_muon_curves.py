#!/usr/bin/env python3
"""Writes muon_curves.txt: 50 steps of PyTorch's Muon in double.

    python3 -m venv torch && torch/bin/pip install 'torch>=2.9' && torch/bin/python tests/golden/make_muon_curves.py tests/golden

Blocks of "case ROWS COLS SCALE MOMENTUM NESTEROV ITERATIONS COEFFICIENTS", then lines of "t w00 w01 ..." after steps 1, 10 and 50.
Start 0.5 sin(i + 2 j); gradient of step t 0.1 sin(1.7 t + 12.9898 i + 78.233 j) + 0.03 cos(0.9 t + 4.1 i j); learning rate 0.02, weight
decay 0.1. PyTorch orthogonalizes in bf16; here that dtype stands for float64. Coefficients other than PyTorch's are those of NVIDIA's
Emerging-Optimizers.
"""
import sys

import torch

torch.bfloat16 = torch.float64
QUINTIC = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]
POLAR_EXPRESS = [
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
    (1.8726, -1.2307, 0.3585),
    (1.8564, -1.2132, 0.3568),
    (1.8750, -1.2500, 0.3750),
]
LISTS = {"quintic": QUINTIC * 4, "polar_express": POLAR_EXPRESS + POLAR_EXPRESS[-1:] * 12}
SCALES = {"original": "original", "adamw": "match_rms_adamw"}
CASES = [
    (6, 4, "original", 0.95, 1, 5, "simple"),
    (4, 6, "original", 0.95, 1, 5, "simple"),
    (9, 9, "original", 0.9, 0, 5, "simple"),
    (6, 4, "adamw", 0.95, 1, 5, "simple"),
    (5, 16, "adamw", 0.9, 0, 3, "simple"),
    (16, 5, "adamw", 0, 1, 7, "simple"),
    (8, 5, "adamw", 0.95, 1, 5, "quintic"),
    (5, 8, "original", 0.95, 1, 7, "quintic"),
    (8, 5, "adamw", 0.9, 0, 5, "polar_express"),
    (5, 8, "original", 0.95, 1, 10, "polar_express"),
]


def with_list(polynomials):
    """Newton-Schulz with other coefficients in every iteration, in place of PyTorch's."""

    def orthogonal(grad, coefficients, steps, eps):
        x = grad.T if grad.size(0) > grad.size(1) else grad
        x = x / (x.norm() + eps)
        for a, b, c in polynomials[:steps]:
            g = x @ x.T
            x = a * x + (b * g + c * g @ g) @ x
        return x.T if grad.size(0) > grad.size(1) else x

    return orthogonal


def main():
    torch.set_default_dtype(torch.float64)
    muon = torch.optim._muon
    theirs = muon._zeropower_via_newtonschulz
    out = open(sys.argv[1] + "/muon_curves.txt", "w")
    for rows, cols, scale, momentum, nesterov, iterations, coefficients in CASES:
        i, j = torch.arange(rows)[:, None].double(), torch.arange(cols)[None, :].double()
        w = torch.nn.Parameter(0.5 * torch.sin(i + 2 * j))
        muon._zeropower_via_newtonschulz = with_list(LISTS[coefficients]) if coefficients in LISTS else theirs
        optimizer = torch.optim.Muon(
            [w], lr=0.02, weight_decay=0.1, momentum=momentum, nesterov=bool(nesterov), ns_steps=iterations, adjust_lr_fn=SCALES[scale]
        )
        print("case", rows, cols, scale, momentum, nesterov, iterations, coefficients, file=out)
        for t in range(1, 51):
            w.grad = 0.1 * torch.sin(1.7 * t + 12.9898 * i + 78.233 * j) + 0.03 * torch.cos(0.9 * t + 4.1 * i * j)
            optimizer.step()
            if t in (1, 10, 50):
                print(t, *(f"{x:.9g}" for x in w.flatten().tolist()), file=out)


main()
