"""Byte-level BPE by Hugging Face's tokenizers, for comparison with ours.
make FOLDER KIND TEXT     trains one on a text: gpt2, gpt2_files (as vocab.json and merges.txt, GPT-2's older form), llama3 (ignore_merges, bos by a template), qwen2 (NFC, added tokens), gpt4
                          (inverted pattern, possessive), deepseek (several pre-tokenizer steps), smollm (Digits)
documents N SEED TEXT     writes N JSON lines of text that is hard for tokenizers
ranks FILE KIND TEXT      trains one and writes it as tiktoken's ranks: gpt2, cl100k, llama3, qwen, o200k
compare FOLDER JSONL PREFIX [whole]   every document of PREFIX.bin, .idx must hold the ids that AutoTokenizer returns, or,
                          for a file of ranks, tiktoken; whole: with the special tokens around a text"""
import base64
import json
import os
import random
import sys
import unicodedata

import numpy
import tiktoken
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
DEEPSEEK = [
    r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
]
PATTERNS = {"llama3": CONTRACTIONS + r"\p{N}{1,3}" + REST, "qwen2": CONTRACTIONS + r"\p{N}" + REST}
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"
])
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# By kind: ranks, pattern as published, some special tokens
RANKS = {
    "gpt2": (50256, GPT2, {"<|endoftext|>": 50256}),
    "cl100k": (100256, GPT4.replace("p{L}+|", "p{L}++|"), {"<|endoftext|>": 100257, "<|endofprompt|>": 100276}),
    "llama3": (128000, PATTERNS["llama3"], {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|eot_id|>": 128009}),
    "qwen": (151643, PATTERNS["qwen2"], {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}),
    "o200k": (199998, O200K, {"<|endoftext|>": 199999}),
}
SPECIAL = {
    "gpt2": ["<|endoftext|>"],
    "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eot_id|><|eot_id|>"],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "gpt4": ["<|endoftext|>"],
    "deepseek": ["<|endoftext|>"],
    "smollm": ["<|endoftext|>"],
}
EMOJI = ["😀", "🎉", "👩‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "🇩🇪", "👍🏽", "🧑🏿‍🚀", "‍", "️"]
SCRIPTS = [
    "àáâãäåæçèéêëìíîïñòóôõöùúûüýÿßŒœŠšıİſK", "日本語中文字漢かなカナ哈、。ｶﾞ", "한국어텍스트각각", "русскийтекстйё",
    "ελληνικάΆά", "العربيةُِّ", "हिन्दीक्षि", "ไทยกำ",
    "ქართული", "עִבְרִית", "አማርኛ",
    "ơ̂ǘ̈ḳ́̈ệ", "ⅣⅧ½¼²³①⒈٣४੩", "𝔘𝔫𝔦𝟘𝟙𠀀𠮷", "\u1100\u1161\u11a8\u0344\u0958\u2126\u212b\uf900\ufb1d\u0340",
]
SPACES = "  \t\u00a0\u1680\u180e\u2003\u200a\u2028\u202f\u205f\u3000\u0085\u000b\u000c\u001c\u200b\ufeff"
CONTROL = [chr(c) for c in [*range(0, 32), 127, 0x85, 0xAD, 0x200E, 0x2060, 0xFFFD, 0xFFFE, 0x10FFFF]]
NAMES = [t for names in SPECIAL.values() for t in names] + [
    "<|endoftext", "<tool_call>", "café", "cafe\u0301", "<|im_start|>user\n", "Ġ", "Ċ"
]
CONTRACTED = [
    "'s", "'S", "'t", "'T", "'re", "'RE", "'Ve", "'vE", "'m", "'M", "'ll", "'lL", "'d", "'D", "'ſ", "’s", "''s", "'x",
    "I'm", "we'LL", "'st"
]


def train(kind, text):
    t = tokenizers.Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind in ("gpt2", "smollm"))
    split = [pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated")] if kind in PATTERNS else []
    if kind == "gpt4":  # text that does not match is removed; everything matches
        split = [pre_tokenizers.Split(Regex(GPT4), "removed", invert=True)]
    if kind == "smollm":
        split = [pre_tokenizers.Digits(individual_digits=True)]
    if kind == "deepseek":
        split = [pre_tokenizers.Split(Regex(p), "isolated") for p in DEEPSEEK]
        split.append(pre_tokenizers.Split("xé", "isolated"))
    t.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level]) if split else byte_level
    t.normalizer = normalizers.NFC() if kind == "qwen2" else None
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(
        text.split("\n\n"),
        trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                            special_tokens=SPECIAL[kind] if kind == "gpt2" else []))
    if kind != "gpt2":
        t.add_special_tokens(SPECIAL[kind])
    if kind == "llama3":
        bos = ("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))
        t.post_processor = processors.Sequence(
            [t.post_processor, processors.TemplateProcessing(single=bos[0] + " $A", special_tokens=[bos])])
    if kind == "qwen2":
        t.add_tokens([
            AddedToken("<tool_call>", normalized=False, special=False),
            AddedToken("cafe\u0301", normalized=True),
        ])
    return t


def make(folder, kind, path):
    """Removes some merges of llama3: their pieces are then matched as whole words only, the effect of ignore_merges."""
    os.makedirs(folder, exist_ok=True)
    random.seed(1)
    if kind == "gpt2_files":
        train("gpt2", open(path, encoding="utf8").read()).model.save(folder)
        return json.dump({"model_type": "gpt2"}, open(folder + "/config.json", "w"))
    j = json.loads(train(kind, open(path, encoding="utf8").read()).to_str())
    if kind == "llama3":
        j["model"]["ignore_merges"] = True
        j["model"]["merges"] = [m for m in j["model"]["merges"] if random.random() > 0.1]
    json.dump(j, open(folder + "/tokenizer.json", "w", encoding="utf8"), ensure_ascii=kind == "gpt2")
    end = {"gpt2": "<|endoftext|>", "llama3": "<|end_of_text|>", "qwen2": "<|im_end|>"}.get(kind, "<|endoftext|>")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "clean_up_tokenization_spaces": False}
    json.dump(config, open(folder + "/tokenizer_config.json", "w"))


def ranks(file, kind, path):
    """Its tokens are followed by byte strings that no text contains, up to the number of the published vocabulary."""
    count, pattern, _ = RANKS[kind]
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ])
    t.train_from_iterator(
        open(path, encoding="utf8").read().split("\n\n"),
        trainers.BpeTrainer(vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    vocab = sorted(t.get_vocab().items(), key=lambda entry: entry[1])
    tokens = [bytes(byte_of[c] for c in piece) for piece, _ in vocab]
    tokens += [b"\xff\xff" + k.to_bytes(3, "big") for k in range(count - len(tokens))]
    with open(file, "wb") as f:
        f.writelines(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def ids_by_tiktoken(file, kind, texts):
    _, pattern, special = RANKS[kind]
    tokens = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in open(file))}
    encoding = tiktoken.Encoding(kind, pat_str=pattern, mergeable_ranks=tokens, special_tokens=special)
    if kind == "qwen":
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    return [encoding.encode(text, allowed_special="all") for text in texts]


def documents(count, seed, path):
    random.seed(seed)
    text = open(path, encoding="utf8").read()
    words, lines = text.split(), [line for line in text.split("\n") if line]

    def some(of, most):
        return "".join(random.choice(of) for _ in range(random.randint(1, most)))

    def code_point():
        """A code point of the first planes that Unicode 14 assigns: the engines disagree on which newer are letters."""
        c = random.choice([random.randrange(n) for n in (0x250, 0x3000, 0x10000, 0x20000)])
        return "x" if unicodedata.category(chr(c)) in ("Cn", "Cs") else chr(c)

    kinds = [
        lambda: " ".join(random.choice(words) for _ in range(random.randint(1, 12))),
        lambda: random.choice(lines) + random.choice(["\n", "\r\n", "\n\n", "\r", " \n", "\n "]),
        lambda: some([chr(c) for c in range(32, 127)], 40),
        lambda: some(random.choice(SCRIPTS), 20),
        lambda: some(EMOJI, 8),
        lambda: some(SPACES + "\n\r", 12),
        lambda: some(CONTROL, 5),
        lambda: random.choice(" \t\n") * random.randint(1, 300),
        lambda: random.choice(words) + random.choice(CONTRACTED) + random.choice(["", " "]),
        lambda: some("0123456789", 12) + random.choice([".", ",", " ", ""]),
        lambda: random.choice(NAMES),
        lambda: "".join(code_point() for _ in range(random.randint(1, 12))),
        lambda: random.choice("a=-_*.!?哈xé ") * random.randint(1, 90),
        lambda: random.choice(["ha", "ab", "aba", "== ", "- ", "the", "\u0301e", "e\u0301", "a\u0323\u0302"]) *
        random.randint(1, 30),
    ]
    for _ in range(count):
        print(json.dumps({"text": "".join(random.choice(kinds)() for _ in range(random.randint(1, 6)))}))


def expected_ids(folder, texts, whole):
    if folder.endswith(".tiktoken"):
        return ids_by_tiktoken(folder, os.path.basename(folder).removesuffix(".tiktoken"), texts)
    return transformers.AutoTokenizer.from_pretrained(folder)(texts, add_special_tokens=whole)["input_ids"]


def compare(folder, path, prefix, whole=""):
    texts = [json.loads(line)["text"] for line in open(path)]
    head = open(prefix + ".idx", "rb").read()
    count = int.from_bytes(head[18:26], "little")
    assert count == len(texts) > 0, f"{count} documents, {len(texts)} texts"
    lengths = numpy.frombuffer(head, numpy.int32, count, 34)
    tokens = numpy.fromfile(prefix + ".bin", {8: numpy.uint16, 4: numpy.int32}[head[17]])
    wrong, begin = 0, 0
    for text, length, ids in zip(texts, lengths, expected_ids(folder, texts, whole != "")):
        got = tokens[begin:begin + length].tolist()
        begin += length
        if got != ids:
            wrong += 1
            if wrong <= 5:
                print(f"{text!r}\n  expected {ids}\n  found    {got}")
    assert wrong == 0, f"{wrong} of {count} documents differ"
    print(f"{count} documents, {len(tokens)} ids equal")


if sys.argv[1] == "make":
    make(*sys.argv[2:])
elif sys.argv[1] == "ranks":
    ranks(*sys.argv[2:])
elif sys.argv[1] == "documents":
    documents(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
else:
    compare(*sys.argv[2:])
