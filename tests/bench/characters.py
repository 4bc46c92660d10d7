"""nanoGPT's character-level configuration for a CPU (4 layers, 4 heads, 128 wide, context 64, 2,000 steps of 12 sequences).

    characters.py tokens TEXT CHARACTERS OUT     the first CHARACTERS of a text as OUT/train.bin and OUT/valid.bin (the last tenth), in
                                                 llm.c's format; prints the size of the vocabulary
    characters.py train OUT SEED                 the baseline in PyTorch: prints the loss over all windows of the validation part, over
                                                 those of its first 20 batches, and milliseconds per step
"""
import array
import math
import sys
import time

LAYERS, HEADS, WIDTH, SEQ, BATCH, STEPS, WARMUP = 4, 4, 128, 64, 12, 2000, 100


def make_tokens(text, count, out):
    text = open(text, encoding="utf-8", errors="replace", newline="").read()[:int(count)]
    ids = {c: k for k, c in enumerate(sorted(set(text)))}
    cut = len(text) * 9 // 10
    for name, part in ("train", text[:cut]), ("valid", text[cut:]):
        with open(f"{out}/{name}.bin", "wb") as f:
            array.array("i", [20240520, 1, len(part)] + [0] * 253).tofile(f)
            array.array("H", [ids[c] for c in part]).tofile(f)
    print(len(ids))


def train(folder, seed):
    import torch
    from torch.nn import functional as F

    torch.manual_seed(seed)
    torch.set_num_threads(2)

    def read(name):
        tokens = array.array("H")
        tokens.frombytes(open(f"{folder}/{name}.bin", "rb").read()[1024:])
        return torch.tensor(tokens.tolist())

    data, valid = read("train"), read("valid")
    vocab = int(max(data.max(), valid.max())) + 1

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = torch.nn.LayerNorm(WIDTH, bias=False), torch.nn.LayerNorm(WIDTH, bias=False)
            self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False), torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False), torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class Gpt(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = torch.nn.Embedding(vocab, WIDTH), torch.nn.Embedding(SEQ, WIDTH)
            self.blocks, self.norm = torch.nn.ModuleList([Block() for _ in range(LAYERS)]), torch.nn.LayerNorm(WIDTH, bias=False)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    branch = name.endswith(("out.weight", "down.weight"))
                    torch.nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if branch else 0.02)

        def forward(self, rows):
            x = self.tok(rows[:, :-1]) + self.pos.weight
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy((self.norm(x) @ self.tok.weight.T).flatten(0, 1), rows[:, 1:].flatten())

    model = Gpt()
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    window = torch.arange(SEQ + 1)
    began = time.perf_counter()
    for step in range(STEPS):
        rate = 1e-3 * (step + 1) / (WARMUP + 1)
        if step >= WARMUP:
            rate = 1e-4 + 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) * 9e-4
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(data[torch.randint(len(data) - SEQ, (BATCH, 1)) + window])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ms = 1000 * (time.perf_counter() - began) / STEPS
    with torch.no_grad():
        rows = valid[torch.arange(0, len(valid) - SEQ, SEQ)[:, None] + window]
        losses = [model(part).item() * len(part) for part in rows.split(BATCH)]
    print(f"{sum(losses) / len(rows):.4f} {sum(losses[:20]) / (20 * BATCH):.4f} {ms:.1f}")


if sys.argv[1] == "tokens":
    make_tokens(*sys.argv[2:])
else:
    train(sys.argv[2], int(sys.argv[3]))
