#!/usr/bin/env python3
"""Speed of one routed feed-forward layer, forward and backward, here and in transformers, on the CPU.

    build/hf5/bin/python tests/bench/routed_layer.py build/cpu/tests/bench/bench_feed_forward [--bf16] [--threads 2] [--rounds 3] ...

For each shape and number of tokens: seconds of Mixtral's block of transformers with each of its experts_implementations, each eager and
compiled, of bench_feed_forward with the same experts, and of its dense layer of as many active channels. Rounds alternate between the
programs; a row has the best of each, the ratio of the best transformers to ours, and of ours to the dense layer. Gradients: of all
weights and of the input. --bf16: weights and activations. Ways that transformers or PyTorch refuse are named with their error, those
that are slow or copy too much with the reason.
"""
import argparse
import subprocess
import time
import warnings

import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

MOST_GATHERED = 1.5e9  # bytes of matrices that batched_mm copies, one for each row
SHAPES = {"h512-f1024-e8-k2": (512, 1024, 8, 2), "h512-f128-e64-k8": (512, 128, 64, 8)}

warnings.filterwarnings("ignore")  # of the compiler
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("program", help="bench_feed_forward")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=3, help="of all programs, one after the other")
parser.add_argument("--repeats", type=int, default=10, help="passes in a round, of which the best counts")
parser.add_argument("--shape", choices=SHAPES, action="append")
parser.add_argument("--tokens", type=int, action="append")
args = parser.parse_args()
torch.set_num_threads(args.threads)
dtype = torch.bfloat16 if args.bf16 else torch.float32


def block(hidden, ffn, experts, top_k, way):
    config = transformers.MixtralConfig(hidden_size=hidden, intermediate_size=ffn, num_local_experts=experts, num_experts_per_tok=top_k,
                                        num_attention_heads=8, num_key_value_heads=8, experts_implementation=way)
    torch.manual_seed(1)
    out = MixtralSparseMoeBlock(config)
    for p in out.parameters():
        torch.nn.init.normal_(p, std=0.02)
    assert out.experts.config._experts_implementation == way
    return out.to(dtype).train()


def best_of_torch(run, module, x, dy):
    best = 1e30
    for repeat in range(args.repeats + 2):
        module.zero_grad(set_to_none=True)
        x.grad = None
        begin = time.perf_counter()
        run(x).backward(dy)
        if repeat >= 2:  # the first compile and take memory
            best = min(best, time.perf_counter() - begin)
    return best


def best_of_ours(tokens, hidden, ffn, experts, top_k):
    words = [args.program, tokens, hidden, ffn, experts, top_k, args.threads, args.repeats, "bf16" if args.bf16 else "f32"]
    return float(subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout)


def ways_of(shape):
    """Name of a way: its module, and the module as it is called."""
    out = {}
    for way in "eager", "batched_mm", "grouped_mm":
        module = block(*shape, way)
        out[way] = module, module
        out[way + " compiled"] = module, torch.compile(module)
    return out


def measure(shape, tokens):
    hidden, ffn, experts, top_k = shape
    x = torch.randn(1, tokens, hidden, dtype=dtype).requires_grad_()
    dy = 1e-3 * torch.randn(1, tokens, hidden, dtype=dtype)
    ways, best, refused = ways_of(shape), {}, {}
    gathered = tokens * top_k * 2 * ffn * hidden * x.element_size()
    if gathered > MOST_GATHERED:
        refused.update({name: f"would copy {gathered / 1e9:.1f} GB of matrices" for name in ways if name.startswith("batched_mm")})

    def keep(name, seconds):
        best[name] = min(best.get(name, 1e30), seconds)

    for _ in range(args.rounds):
        keep("ours", best_of_ours(tokens, hidden, ffn, experts, top_k))
        keep("dense", best_of_ours(tokens, hidden, ffn * top_k, 0, 1))
        for name, (module, run) in ways.items():
            if name in refused:
                continue
            try:
                keep(name, best_of_torch(run, module, x, dy))
            except Exception as e:  # of transformers, of PyTorch or of its compiler
                refused[name] = f"{type(e).__name__}: {str(e).strip().splitlines()[0][:100]}"
        fastest = min(best[name] for name in ways if name in best)
        refused.update({name: "five times slower than the fastest, one round alone" for name in ways if best.get(name, 0) > 5 * fastest})
    return best, refused


def main():
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {args.threads} threads, {'bf16' if args.bf16 else 'f32'}")
    for name in args.shape or SHAPES:
        for tokens in args.tokens or (512, 1024, 2048, 4096):
            torch._dynamo.reset()
            best, refused = measure(SHAPES[name], tokens)
            theirs = min((k for k in best if k not in ("ours", "dense")), key=best.get)
            print(f"{name}, {tokens} tokens: " + ", ".join(f"{k} {1e3 * v:.2f} ms" for k, v in best.items()))
            for way, why in refused.items():
                print(f"  {way}: {why}")
            print(f"  {theirs} / ours {best[theirs] / best['ours']:.2f}, ours / dense {best['ours'] / best['dense']:.2f}", flush=True)


main()
