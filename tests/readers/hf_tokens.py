"""Loads a folder written by `gpttrain export` with AutoTokenizer, unchanged. Every line of LINES must encode to the ids
in the same line of IDS (gpttrain tokenizer encode) and decode to itself. With PROMPT and N, AutoModelForCausalLM
generates N tokens greedily into OUT.
Usage: hf_tokens.py FOLDER LINES IDS [PROMPT N OUT]"""
import sys

import transformers

folder, lines, ids = sys.argv[1:4]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
texts = open(lines, encoding="utf8", newline="\n").read().split("\n")[:-1]
expected = [[int(x) for x in line.split()] for line in open(ids)]
assert len(texts) == len(expected) > 0, f"{len(texts)} lines, {len(expected)} lines of ids"
wrong = 0
for text, target in zip(texts, expected):
    got = tokenizer(text)["input_ids"]
    back = tokenizer.decode(got)
    if got != target or back != text:
        wrong += 1
        if wrong <= 5:
            print(f"{text!r}\n  expected {target}\n  found    {got}\n  decoded  {back!r}")
assert wrong == 0, f"{wrong} of {len(texts)} lines differ"
whole = "\n".join(texts)
assert tokenizer.decode(tokenizer(whole)["input_ids"]) == whole
if len(sys.argv) > 4:
    import torch

    prompt, count, out = sys.argv[4:7]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        made = model.generate(**tokens, do_sample=False, max_new_tokens=int(count))[0]
    with open(out, "w", encoding="utf8", newline="\n") as f:
        f.write(tokenizer.decode(made, skip_special_tokens=True) + "\n")
print(f"transformers {transformers.__version__}: {len(texts)} lines, ids and text equal")
