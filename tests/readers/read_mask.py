"""Reads PREFIX.mask with numpy beside PREFIX.bin and .idx: in every document, the tokens that carry loss are the answer
of the line of JSONL (instruct format, template plain) and <|endoftext|>.
Usage: read_mask.py PREFIX MODEL JSONL"""
import json
import sys

import numpy
import sentencepiece

prefix, model, lines = sys.argv[1:]
pieces = sentencepiece.SentencePieceProcessor(model_file=model)
tokens = numpy.fromfile(prefix + ".bin", "<u2")
assert open(prefix + ".mask", "rb").read(8) == b"GPTMASK1"
mask = numpy.fromfile(prefix + ".mask", "u1", offset=8)
assert mask.shape == tokens.shape and set(mask) == {0, 1}, (mask.shape, tokens.shape)
count = int(numpy.fromfile(prefix + ".idx", "<u8", 1, offset=18)[0])
lengths = numpy.fromfile(prefix + ".idx", "<i4", count, offset=34)
starts = numpy.concatenate([[0], numpy.cumsum(lengths)])
answers = [x["output"] for x in map(json.loads, open(lines, encoding="utf8")) if x["output"]]
assert len(answers) == count
for k, answer in enumerate(answers):
    part = slice(starts[k], starts[k + 1])
    targets = tokens[part][mask[part] == 1].tolist()
    assert targets[-1] == pieces.piece_to_id("<|endoftext|>"), targets
    assert pieces.decode(targets[:-1]) == answer, (targets, answer)
    assert mask[part][0] == 0
print(f"{count} conversations, {int(mask.sum())} of {len(tokens)} tokens carry loss")
