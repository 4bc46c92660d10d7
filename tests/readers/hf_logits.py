"""Loads folders written by `gpttrain export` into transformers, unchanged. Writes the last token's logits of each prompt
in a text file (token ids, one prompt per line) as f32, in order. Prints the library versions.
Usage: hf_logits.py FOLDER PROMPTS OUT [FOLDER PROMPTS OUT ...]"""
import sys

import torch
import transformers
from exact_routers import exact_routers

# Of transformers 5: its other forms of experts have no FP64.
experts = {"experts_implementation": "eager"} if int(transformers.__version__.split(".")[0]) > 4 else {}
for folder, prompts, out in zip(*[iter(sys.argv[1:])] * 3):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **experts)  # SDPA ignores the soft caps of Gemma 2
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], f"{folder}: {key}: {info[key]}"
    exact_routers(model.double().eval())  # FP32 rounding alone is 1e-5 in Gemma 3
    with torch.no_grad(), open(out, "wb") as f:
        for line in open(prompts):
            tokens = torch.tensor([[int(t) for t in line.split()]])
            f.write(model(tokens).logits[0, -1].float().numpy().tobytes())
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
