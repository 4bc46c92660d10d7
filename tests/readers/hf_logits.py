"""Loads a folder that `gpttrain export` wrote into transformers, unchanged, and writes the logits after each prompt of a text
file (token numbers, a prompt a line) as f32, one prompt after another. Says which versions did it."""
import sys

import torch
import transformers

folder, prompts, out = sys.argv[1:4]
model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    assert not info[key], f"{key}: {info[key]}"
model.eval()
with torch.no_grad(), open(out, "wb") as f:
    for line in open(prompts):
        tokens = torch.tensor([[int(t) for t in line.split()]])
        f.write(model(tokens).logits[0, -1].float().numpy().tobytes())
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
