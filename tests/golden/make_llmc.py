#!/usr/bin/env python3
"""Writes small.bin, small_debug_state.bin and small_losses.txt: a model and a debug state in the formats of llm.c's
train_gpt2.py, and the losses of ten AdamW steps on the state's batch, all by PyTorch in float64.

    apt-get install python3-torch && /usr/bin/python3 tests/golden/make_llmc.py tests/golden/llmc

A file is 256 int32 of header and then its payload. Model: 20240326, 3 (f32), positions, V, layers, heads, width, Vp;
then the tensors in the order of ORDER, those of blocks stacked by layer, the table with Vp rows. State: 20240327, 2, B,
T; then x and y as int32, logits [B, T, V], loss, and gradients in the order of the model, all f32. The model is that of
make_torch_gpt2.py.
"""
import sys

import torch

import make_torch_gpt2 as gpt

gpt.LAYERS, gpt.HIDDEN, gpt.HEADS, gpt.KV_HEADS, gpt.VOCAB, gpt.SEQ = 2, 32, 2, 2, 61, 24
PADDED, BATCH, LENGTH, LR = 128, 4, 16, 3e-3
BLOCK = ("norm1.weight", "norm1.bias", "attn.qkv.weight", "attn.qkv.bias", "attn.out.weight", "attn.out.bias",
         "norm2.weight", "norm2.bias", "mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias")
ORDER = (["embed.weight", "pos_embed.weight"] + [f"layers.{i}.{n}" for n in BLOCK for i in range(gpt.LAYERS)] +
         ["final_norm.weight", "final_norm.bias"])


def header(*numbers):
    return torch.tensor(numbers + (0,) * (256 - len(numbers)), dtype=torch.int32)


def write(path, parts):
    with open(path, "wb") as f:
        for t in parts:
            f.write((t if t.dtype == torch.int32 else t.float()).contiguous().numpy().tobytes())


def in_order(tensors):
    for name in ORDER:
        t = tensors[name].detach()
        if name == "embed.weight":
            t = torch.nn.functional.pad(t, (0, 0, 0, PADDED - gpt.VOCAB))
        yield t


def main(folder):
    torch.manual_seed(11)
    w = {n: torch.full(s, 1.0 if "norm" in n and n.endswith("weight") else 0.0) + 0.2 * torch.randn(s)
         for n, s in gpt.shapes().items()}
    w = {n: t.double() for n, t in w.items()}
    write(folder + "/small.bin", [header(20240326, 3, gpt.SEQ, gpt.VOCAB, gpt.LAYERS, gpt.HEADS, gpt.HIDDEN, PADDED),
                                  *in_order(w)])
    text = torch.randint(0, gpt.VOCAB, (BATCH * LENGTH + 1,))
    x, y = text[:-1].view(BATCH, LENGTH), text[1:].view(BATCH, LENGTH)
    for t in w.values():
        t.requires_grad_()
    optimizer = torch.optim.AdamW(w.values(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    with open(folder + "/small_losses.txt", "w") as out:
        print("lr", LR, file=out)
        for step in range(10):
            optimizer.zero_grad()
            logits = gpt.forward(w, x)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            loss.backward()
            if step == 0:
                write(folder + "/small_debug_state.bin",
                      [header(20240327, 2, BATCH, LENGTH), x.int(), y.int(), logits.detach(), loss.detach(),
                       *in_order({n: t.grad for n, t in w.items()})])
            norm = torch.nn.utils.clip_grad_norm_(list(w.values()), 1.0)
            optimizer.step()
            print("loss %.9g" % loss.item(), file=out)
            print("step", step, "loss", loss.item(), "norm", norm.item())


if __name__ == "__main__":
    main(sys.argv[1])
