"""Loads a PEFT folder written by `gpttrain export --format peft` onto its base, unchanged. Writes the last token's logits of
each prompt in a text file (token ids, one prompt per line) as f32, in order.
Usage: peft_logits.py ADAPTER PROMPTS OUT"""
import json
import sys
import warnings

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

warnings.filterwarnings("error", category=UserWarning)  # of missing adapter keys
adapter, prompts, out = sys.argv[1:]
base = json.load(open(adapter + "/adapter_config.json"))["base_model_name_or_path"]
plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
model = PeftModel.from_pretrained(plain, adapter)
model.eval()
with torch.no_grad(), open(out, "wb") as f:
    for line in open(prompts):
        tokens = torch.tensor([[int(t) for t in line.split()]])
        f.write(model(tokens).logits[0, -1].float().numpy().tobytes())
