"""Loads folders into transformers and saves them again, in the form of its version. Prints that version.
Usage: hf_save.py FOLDER OUT [FOLDER OUT ...]"""
import sys

import torch
import transformers

for folder, out in zip(*[iter(sys.argv[1:])] * 2):
    transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(out)
print(f"transformers {transformers.__version__}")
