"""Scores multiple-choice questions with a folder written by `gpttrain export` in transformers, and compares every
log-likelihood and decision with RESULTS (gpttrain eval --tasks --out), item by item.
Usage: hf_choices.py FOLDER RESULTS TASKS.jsonl [TASKS.jsonl ...]"""
import json
import sys

import torch
import transformers

folder, results, *files = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder).double().eval()
context = model.config.max_position_embeddings
end = tokenizer.convert_tokens_to_ids("<|endoftext|>")


def ids(text):
    return tokenizer(text, add_special_tokens=False)["input_ids"] if text else []


def score(stem, whole):
    given, tokens = len(ids(stem)), ids(whole)
    scored = len(tokens) - given
    tokens = ([] if given else [end]) + tokens
    tokens = tokens[-(context + 1):]
    logits = model(torch.tensor([tokens[:-1]])).logits[0].log_softmax(-1)
    targets = torch.tensor(tokens[1:])
    picked = logits.gather(1, targets[:, None])[-scored:, 0]
    return picked.sum().item(), bool((logits.argmax(-1) == targets)[-scored:].all()), scored


questions = [json.loads(line) for f in files for line in open(f, encoding="utf8") if line.strip()]
found = json.load(open(results))
assert len(found["questions"]) == len(questions) > 0
worst = 0
with torch.no_grad():
    for q, r in zip(questions, found["questions"]):
        scores = [score(q["context"].rstrip(), q["context"] + c) for c in q["choices"]]
        for (ours, greedy, tokens), (theirs, their_greedy, n) in zip(
                zip(r["loglikelihood"], r["greedy"], r["tokens"]), scores):
            assert tokens == n, f"{r['line']}: {tokens} tokens, transformers {n}"
            assert greedy == their_greedy, r["line"]
            worst = max(worst, abs(ours - theirs) / max(1, abs(theirs)))
        logs = [s[0] for s in scores]
        norms = [x / len(c) for x, c in zip(logs, q["choices"])]
        assert r["chosen"] == logs.index(max(logs)), r["line"]
        assert r["chosen_norm"] == norms.index(max(norms)), r["line"]
        assert r["answer"] == q["answer"]
assert worst < 1e-5, f"log-likelihoods differ by {worst:.2g}"
n = len(questions)
for key, chosen in (("acc", "chosen"), ("acc_norm", "chosen_norm")):
    hits = [r[chosen] == r["answer"] for r in found["questions"]]
    p = sum(hits) / n
    if len(found["tasks"]) == 1:
        assert abs(found["tasks"][0][key] - p) < 1e-12
        assert abs(found["tasks"][0][key + "_stderr"] - (p * (1 - p) / (n - 1)) ** 0.5) < 1e-12
print(f"transformers {transformers.__version__}: {n} questions, largest relative difference {worst:.2g}")
