"""Writes tests/golden/hf_gpt2/: a tiny random GPT-2 as saved by transformers, and its predictions.

    pip install torch transformers && python tests/golden/make_hf_gpt2.py tests/golden/hf_gpt2

config.json and model.safetensors are save_pretrained's. logits.safetensors holds eight prompts and the logits after each:
tokens.0 i32 [length], logits.0 f32 [vocab], ... Biases and norms are random too, so that no two tensors are alike."""
import sys

import torch
import transformers
from safetensors.torch import save_file

out = sys.argv[1]
torch.manual_seed(11)
config = transformers.GPT2Config(vocab_size=61, n_positions=24, n_embd=16, n_layer=2, n_head=4, bos_token_id=3, eos_token_id=3)
model = transformers.GPT2LMHeadModel(config).eval()
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.15 * torch.randn_like(p))
    tensors = {}
    for k in range(8):
        tokens = torch.randint(0, 61, (1, 3 * k + 3))
        tensors[f"tokens.{k}"] = tokens[0].to(torch.int32)
        tensors[f"logits.{k}"] = model(tokens).logits[0, -1].contiguous()
model.save_pretrained(out, safe_serialization=True)
save_file(tensors, out + "/logits.safetensors")
