#!/usr/bin/env python3
"""Writes lr_curves.txt: whole curves of PyTorch's OneCycleLR and of DeepSpeed's schedules, from their own code.

    apt-get install python3-torch
    pip download deepspeed==0.19.6 --no-deps --no-binary :all: && tar xzf deepspeed-0.19.6.tar.gz
    /usr/bin/python3 tests/golden/make_lr_curves.py deepspeed-0.19.6 tests/golden/lr_curves.txt

Blocks of "curve NAME", then a line "t lr beta1 beta2" for each step from 1; a dash where the schedule does not change a
value. The table in tests/optim/lr_schedule_test.cpp defines the names.
"""
import importlib.util
import logging
import sys
import types

import torch
from torch.optim.lr_scheduler import OneCycleLR


def deepspeed_schedules(source):
    utils = types.ModuleType("deepspeed.utils")
    utils.logger = logging.getLogger("deepspeed")
    sys.modules["deepspeed"] = types.ModuleType("deepspeed")
    sys.modules["deepspeed.utils"] = utils
    spec = importlib.util.spec_from_file_location("lr_schedules", source + "/deepspeed/runtime/lr_schedules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def adam(lr):
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=lr, betas=(0.9, 0.95))


def curve(out, name, steps, make, lr=1e-3, momentum=False):
    """Steps the optimizer, then the schedule, as DeepSpeed and PyTorch loops do."""
    optimizer = adam(lr)
    schedule = make(optimizer)
    print("curve", name, file=out)
    for t in range(1, steps + 1):
        group = optimizer.param_groups[0]
        betas = ["%.17g" % b for b in group["betas"]] if momentum else ["-", "-"]
        print(t, "%.17g" % group["lr"], *betas, file=out)
        optimizer.step()
        if t < steps:
            schedule.step()


def main():
    ds = deepspeed_schedules(sys.argv[1])
    with open(sys.argv[2], "w") as out:
        for name, steps, o in [("torch12", 12, {}), ("torch100", 100, {"pct_start": 0.25, "final_div_factor": 100}),
                               ("torch_linear", 37, {"anneal_strategy": "linear", "div_factor": 10}),
                               ("torch_three_phase", 50, {"three_phase": True, "base_momentum": 0.8, "max_momentum": 0.9})]:
            curve(out, name, steps, lambda a: OneCycleLR(a, max_lr=1e-3, total_steps=steps, **o), momentum=True)
        cycle = dict(cycle_min_lr=1e-4, cycle_max_lr=1e-3, cycle_min_mom=0.85, cycle_max_mom=0.99)
        for name, steps, o in [("one_cycle", 30, dict(decay_lr_rate=0.1, cycle_first_step_size=4, cycle_second_step_size=6, decay_step_size=2)),
                               ("one_cycle_symmetric", 50, dict(cycle_first_step_size=20)),
                               ("one_cycle_stairs", 60, dict(cycle_first_step_size=20, cycle_second_step_size=30, cycle_first_stair_count=4,
                                                             cycle_second_stair_count=7)),
                               ("one_cycle_momentum_decay", 40, dict(cycle_first_step_size=7, cycle_max_mom=0.9, decay_step_size=10,
                                                                     decay_mom_rate=0.01, decay_lr_rate=0.5))]:
            curve(out, name, steps, lambda a: ds.OneCycle(a, **{**cycle, **o}), momentum=True)
        for kind in "log", "linear":
            curve(out, "warmup_" + kind, 20, lambda a: ds.WarmupLR(a, warmup_num_steps=10, warmup_type=kind, warmup_min_lr=1e-5))
            curve(out, "warmup_decay_" + kind, 30,
                  lambda a: ds.WarmupDecayLR(a, total_num_steps=20, warmup_num_steps=5, warmup_max_lr=1e-3, warmup_type=kind))
            curve(out, "warmup_cosine_" + kind, 30,
                  lambda a: ds.WarmupCosineLR(a, total_num_steps=20, warmup_num_steps=5, warmup_min_ratio=0.1, warmup_type=kind))
        for stairs in False, True:
            curve(out, "range_test" + ("_stairs" if stairs else ""), 25,
                  lambda a: ds.LRRangeTest(a, lr_range_test_min_lr=1e-3, lr_range_test_step_size=5, lr_range_test_step_rate=2,
                                           lr_range_test_staircase=stairs))


main()
