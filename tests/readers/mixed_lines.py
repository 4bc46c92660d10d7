"""Writes N lines that are hard for tokenizers: words of a text file, ASCII, accents, CJK, emoji, control characters,
runs of blanks and other characters, U+2581, names of control tokens, random code points. Usage: mixed_lines.py N
SEED TEXT > LINES."""
import random
import sys

count, seed, text = int(sys.argv[1]), int(sys.argv[2]), open(sys.argv[3], encoding="utf8").read()
random.seed(seed)
words = text.split()
lines = [line for line in text.split("\n") if line]
CJK = "日本語中文字漢かなカナ哈、。"
ACCENTS = "àáâãäåæçèéêëìíîïñòóôõöùúûüýÿßŒœŠš "
EMOJI = ["😀", "🎉", "👩‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "🇩🇪"]
CONTROL = [*range(0, 10), *range(11, 32), 127, 0x85, 0xA0, 0x2028, 0x200B, 0xFEFF]
NAMES = ["<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|endoftext", "<0x41>", "<0xE2>", "<0x0A>", "▁", "▁the", "▁<s>", "▁▁", "�",
         "<x1>", "a<x1>b"]


def code_point():
    while True:
        c = random.randrange(0x110000)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def some(of, most):
    return "".join(random.choice(of) for _ in range(random.randint(1, most)))


KINDS = [
    lambda: " ".join(random.choice(words) for _ in range(random.randint(1, 12))),
    lambda: random.choice(lines),
    lambda: some([chr(c) for c in range(32, 127)], 40),
    lambda: some(ACCENTS, 20),
    lambda: some(CJK, 30),
    lambda: some(EMOJI, 8),
    lambda: some([chr(c) for c in CONTROL], 5),
    lambda: random.choice(" \t") * random.randint(1, 30),
    lambda: random.choice(NAMES),
    lambda: "".join(code_point() for _ in range(random.randint(1, 12))),
    lambda: random.choice("a=-_*.!?哈xé ") * random.randint(1, 90),
    lambda: random.choice(["ha", "ab", "aba", "== ", "- ", "the", "́e", "é"]) * random.randint(1, 30),
]
for _ in range(count):
    line = "".join(random.choice(KINDS)() for _ in range(random.randint(1, 6)))
    sys.stdout.buffer.write((line.replace("\n", "") + "\n").encode())
