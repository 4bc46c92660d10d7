#!/usr/bin/env python3
"""Writes torch_gpt2.safetensors: a tiny GPT-2 in PyTorch, its loss, every gradient, and ten AdamW steps. With a number
of KV heads: one block with grouped queries, its loss and gradients only.

    apt-get install python3-torch && /usr/bin/python3 tests/golden/make_torch_gpt2.py tests/golden/torch_gpt2.safetensors
    /usr/bin/python3 tests/golden/make_torch_gpt2.py tests/golden/torch_gpt2_grouped.safetensors 2

The model is implemented here in plain torch from the GPT-2 paper's description (pre-norm blocks, tanh GELU, learned positions, tied
head); float64 is used for the gradients so that the fixture is a reference, float32 for the ten training steps.
"""
import json
import math
import struct
import sys

import torch

LAYERS, HIDDEN, HEADS, VOCAB, SEQ, BATCH, MICROBATCHES = 3, 32, 4, 61, 16, 2, 2
KV_HEADS = HEADS


def kv_width():
    return KV_HEADS * (HIDDEN // HEADS)


def shapes():
    out = {"embed.weight": (VOCAB, HIDDEN), "pos_embed.weight": (SEQ, HIDDEN)}
    for i in range(LAYERS):
        p = f"layers.{i}."
        out.update({p + "norm1.weight": (HIDDEN,), p + "norm1.bias": (HIDDEN,),
                    p + "attn.qkv.weight": (HIDDEN + 2 * kv_width(), HIDDEN), p + "attn.qkv.bias": (HIDDEN + 2 * kv_width(),),
                    p + "attn.out.weight": (HIDDEN, HIDDEN), p + "attn.out.bias": (HIDDEN,),
                    p + "norm2.weight": (HIDDEN,), p + "norm2.bias": (HIDDEN,),
                    p + "mlp.up.weight": (4 * HIDDEN, HIDDEN), p + "mlp.up.bias": (4 * HIDDEN,),
                    p + "mlp.down.weight": (HIDDEN, 4 * HIDDEN), p + "mlp.down.bias": (HIDDEN,)})
    out.update({"final_norm.weight": (HIDDEN,), "final_norm.bias": (HIDDEN,)})
    return out


def forward(w, tokens):
    b, s = tokens.shape
    x = w["embed.weight"][tokens] + w["pos_embed.weight"][:s]
    norm = lambda x, n: torch.nn.functional.layer_norm(x, (HIDDEN,), w[n + ".weight"], w[n + ".bias"], 1e-5)
    mask = torch.tril(torch.ones(s, s, dtype=torch.bool))
    for i in range(LAYERS):
        p = f"layers.{i}."
        qkv = norm(x, p + "norm1") @ w[p + "attn.qkv.weight"].T + w[p + "attn.qkv.bias"]
        q, k, v = (t.view(b, s, -1, HIDDEN // HEADS).transpose(1, 2)
                   for t in qkv.split((HIDDEN, kv_width(), kv_width()), dim=-1))
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        a = (q @ k.transpose(-1, -2) / math.sqrt(HIDDEN // HEADS)).masked_fill(~mask, -math.inf).softmax(-1)
        h = (a @ v).transpose(1, 2).reshape(b, s, HIDDEN)
        x = x + h @ w[p + "attn.out.weight"].T + w[p + "attn.out.bias"]
        u = norm(x, p + "norm2") @ w[p + "mlp.up.weight"].T + w[p + "mlp.up.bias"]
        u = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))
        x = x + u @ w[p + "mlp.down.weight"].T + w[p + "mlp.down.bias"]
    return norm(x, "final_norm") @ w["embed.weight"].T


def loss_of(w, tokens, targets):
    return torch.nn.functional.cross_entropy(forward(w, tokens).flatten(0, 1), targets.flatten().long())


def main(path):
    torch.manual_seed(7)
    start = {n: (torch.ones(s) if "norm" in n and n.endswith("weight") else torch.zeros(s)) + 0.08 * torch.randn(s)
             for n, s in shapes().items()}
    samples = torch.randint(0, VOCAB, (10, BATCH * MICROBATCHES, SEQ + 1))  # one global batch per step
    tensors = {"weight/" + n: t for n, t in start.items()}
    tensors["samples"] = samples.to(torch.int32)

    w = {n: t.double().requires_grad_() for n, t in start.items()}
    loss = loss_of(w, samples[0, :, :-1], samples[0, :, 1:])
    loss.backward()
    tensors.update({"grad/" + n: t.grad.float() for n, t in w.items()})
    tensors["loss"] = loss.detach().reshape(1).float()
    if KV_HEADS == HEADS:
        add_adamw(tensors, start, samples)
    write(path, tensors)
    print("loss", tensors["loss"].item())


def add_adamw(tensors, start, samples):
    w = {n: t.clone().requires_grad_() for n, t in start.items()}
    decay = [t for t in w.values() if t.dim() >= 2]
    plain = [t for t in w.values() if t.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                                  lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(10):
        optimizer.zero_grad()
        loss = loss_of(w, samples[step, :, :-1], samples[step, :, 1:])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), 1.0))
        optimizer.step()
        losses.append(loss.detach())
    tensors["adamw/losses"] = torch.stack(losses)
    tensors["adamw/norms"] = torch.stack(norms).float()
    tensors.update({"adamw/weight/" + n: t.detach() for n, t in w.items() if n in ("embed.weight", "layers.1.attn.qkv.weight")})


def write(path, tensors):
    header, data = {}, b""
    for name, t in sorted(tensors.items()):
        raw = t.contiguous().numpy().tobytes()
        header[name] = {"dtype": "I32" if t.dtype == torch.int32 else "F32", "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text.encode() + data)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        LAYERS, KV_HEADS = 1, int(sys.argv[2])
    main(sys.argv[1])
