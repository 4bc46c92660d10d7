"""Kinds of tokenizer.json by Hugging Face's tokenizers, for comparison with ours.
make FOLDER KIND TEXT     trains a model of this kind on a text and writes it as tokenizer.json; word_piece_txt: as
                          vocab.txt; tekken: as tekken.json
kinds GROUP               names of the kinds of a group, one a line
texts N SEED TEXT         writes N JSON strings, one a line, of text that is hard for tokenizers
compare FOLDER TEXTS IDS BACK   every line of IDS (gpttrain tokenizer encode, one text after the other) must hold the ids
                          that the library returns, and every line of BACK the text that it decodes them to
"""
import base64
import json
import os
import random
import struct
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

BLANK = "\u2581"
BYTES = [f"<0x{b:02X}>" for b in range(256)]
METASPACE = pre_tokenizers.Metaspace
SPLIT = pre_tokenizers.Split
BYTE_LEVEL = pre_tokenizers.ByteLevel
FALLBACK = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
LLAMA = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
ADDED = [
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<tool_call>", special=False, normalized=True),
    AddedToken("license", special=False, normalized=False, single_word=True),
    AddedToken("<|user|>", special=True, normalized=False, rstrip=True),
    AddedToken("<|mask|>", special=True, normalized=False, lstrip=True),
    AddedToken("The Work", special=False, normalized=True),
]


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


def bert(lower, **more):
    return normalizers.BertNormalizer(lowercase=lower, **more)


# BPE with byte fallback: normalizer, pre-tokenizer, decoder; `no_tab`: without the piece of byte 9
FALLBACKS = {
    "gemma": (normalizers.Replace(" ", BLANK), SPLIT(" ", "merged_with_previous"), FALLBACK),
    "gemma_plain": (normalizers.Replace(" ", BLANK), None, FALLBACK),
    "llama": (LLAMA, None, FALLBACK + [decoders.Strip(" ", 1, 0)]),
    "yi": (normalizers.Replace(" ", BLANK), None, FALLBACK),
    "phi3": (LLAMA, None, FALLBACK + [decoders.Strip(" ", 1, 0)]),
    "first": (None, METASPACE(BLANK, "first", False), FALLBACK + [decoders.Strip(" ", 1, 0)]),
    "always": (None, METASPACE(BLANK, "always", False), FALLBACK + [decoders.Strip(" ", 1, 0)]),
    "never": (None, METASPACE(BLANK, "never", False), FALLBACK),
    "first_split": (None, METASPACE(BLANK, "first", True), [decoders.Metaspace(BLANK, "first", True)]),
    "always_split": (normalizers.NFKC(), METASPACE(BLANK, "always", True), [decoders.Metaspace(BLANK, "always", True)]),
    "few_bytes": (LLAMA, None, FALLBACK),
    "no_bytes": (normalizers.Sequence([normalizers.Strip(True, False), normalizers.NFD()]),
                 METASPACE(BLANK, "first", True), [decoders.Metaspace(BLANK, "first", True)]),
}
# BPE of bytes: normalizer, pre-tokenizer
BYTE_LEVELS = {
    "roberta": (None, BYTE_LEVEL(add_prefix_space=True)),
    "roberta_plain": (None, BYTE_LEVEL(add_prefix_space=True, use_regex=False)),
    "digits": (normalizers.NFKC(), sequence(pre_tokenizers.Digits(True), BYTE_LEVEL(add_prefix_space=True))),
    "digit_runs": (normalizers.NFKD(), sequence(pre_tokenizers.Digits(False), BYTE_LEVEL(add_prefix_space=False))),
    "punctuation": (normalizers.Lowercase(), sequence(pre_tokenizers.Punctuation("merged_with_next"),
                                                      BYTE_LEVEL(add_prefix_space=False, use_regex=False))),
    "contiguous": (normalizers.StripAccents(), sequence(pre_tokenizers.Punctuation("contiguous"),
                                                        SPLIT("e", "merged_with_previous"), BYTE_LEVEL(False))),
    "spaces": (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]),
               sequence(pre_tokenizers.WhitespaceSplit(), BYTE_LEVEL(add_prefix_space=True))),
    "words": (normalizers.Strip(), sequence(pre_tokenizers.Whitespace(), BYTE_LEVEL(False, use_regex=False))),
    "patterns": (normalizers.Replace(Regex(r"\s{2,}"), " _"),
                 sequence(SPLIT(Regex(r"\d{3}"), "merged_with_next"), SPLIT(Regex(r"\p{L}+"), "removed", True),
                          SPLIT("a", "contiguous"), BYTE_LEVEL(False, use_regex=False))),
    "bert_bytes": (bert(False), sequence(pre_tokenizers.BertPreTokenizer(), BYTE_LEVEL(True))),
    "ignore_merges": (normalizers.Prepend("x"), sequence(SPLIT(" ", "isolated"), BYTE_LEVEL(True))),
}
WORD_PIECES = {
    "bert_uncased": (bert(True), pre_tokenizers.BertPreTokenizer()),
    "bert_cased": (bert(False), pre_tokenizers.BertPreTokenizer()),
    "bert_accents": (bert(True, strip_accents=False, handle_chinese_chars=False), pre_tokenizers.BertPreTokenizer()),
    "bert_raw": (bert(False, clean_text=False, strip_accents=True), pre_tokenizers.BertPreTokenizer()),
    "word_piece_words": (normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), pre_tokenizers.Whitespace()),
    "word_piece_txt": (bert(True), pre_tokenizers.BertPreTokenizer()),
}
UNIGRAMS = {
    "xlmr": ("charsmap", sequence(pre_tokenizers.WhitespaceSplit(), METASPACE(BLANK, "always", True))),
    "t5": ("charsmap", METASPACE(BLANK, "always", True)),
    "t5_first": ("charsmap", METASPACE(BLANK, "first", True)),
    "nmt": (normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
            METASPACE(BLANK, "always", False)),
    "unigram_bytes": (normalizers.Replace(Regex(" {2,}"), BLANK), METASPACE(BLANK, "never", True)),
}
GROUPS = {"fallback": FALLBACKS, "byte_level": BYTE_LEVELS, "word_piece": WORD_PIECES, "unigram": UNIGRAMS,
          "tekken": {"tekken": None}}


def charsmap():
    """A table of replacements as SentencePiece compiles it: a double-array trie and its texts."""
    rules = {"\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\r": "", "\x01": "", "\u200b": " ", "\ufb01": "fi",
             "\uff21": "A", "\u00bd": "1\u20442", "e\u0301": "\u00e9", "\u0301": "", "\u2460": "1", "\u30ab\u3099": "\u30ac",
             "\u1100\u1161": "\uac00", "\u2028": " ", "\u00e9x": "!"}
    texts, nodes = b"", {}
    for key, value in rules.items():
        at = nodes
        for b in key.encode():
            at = at.setdefault(b, {})
        at[None] = len(texts)
        texts += value.encode() + b"\0"
    units, used = {0: 0}, {0}
    free = [256]

    def insert(node, at):  # children of the unit at index `at` get the indices base ^ label
        base, free[0] = free[0], free[0] + 256
        units[at] |= (base ^ at) << 10 | (0x100 if None in node else 0)
        if None in node:
            units[base] = node[None] | 1 << 31
        for label, child in node.items():
            if label is not None:
                units[base ^ label] = label
                insert(child, base ^ label)

    insert(nodes, 0)
    size = -(-max(free) // 256) * 256
    trie = struct.pack(f"<{size}I", *(units.get(k, 0) for k in range(size)))
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + texts).decode()


def corpus(path):
    lines = open(path, encoding="utf8").read().split("\n")
    return lines + ["Überraschung café naïve 日本語の 漢字 test12 x9", "résumé \u0301 ½ ＡＢＣ"] * 20


def vocabulary(text, more, size=900):
    """Pieces and merges of a BPE over characters, trained with blanks as U+2581."""
    t = tokenizers.Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", BLANK)
    t.pre_tokenizer = SPLIT(Regex(BLANK + "*[^" + BLANK + "]+|" + BLANK + "+"), "isolated")
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    merges = [tuple(m) for m in json.loads(t.to_str())["model"]["merges"]]
    pieces = sorted(t.get_vocab(), key=t.get_vocab().get)
    return {p: k for k, p in enumerate(dict.fromkeys([*more, *pieces]))}, merges


def fallback(kind, text):
    names = ["<unk>", "<s>", "</s>"]
    left_out = {"gemma": BYTES[9:10], "few_bytes": BYTES[0x80:0xC8], "no_bytes": BYTES}.get(kind, [])
    more = [*names, *(b for b in BYTES if b not in left_out), "\t", "\n", BLANK * 2]
    vocab, merges = vocabulary(text, more)
    normalizer, splitter, steps = FALLBACKS[kind]
    t = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=kind != "few_bytes",
                                        byte_fallback=kind != "no_bytes"))
    t.decoder = decoders.Sequence(steps)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t, normalizer, splitter, names


def byte_level(kind, text):
    normalizer, splitter = BYTE_LEVELS[kind]
    t = tokenizers.Tokenizer(models.BPE(ignore_merges=kind == "ignore_merges"))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = splitter
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=800, show_progress=False,
                                                    initial_alphabet=BYTE_LEVEL.alphabet()))
    t.post_processor = processors.RobertaProcessing(("e", 68), ("t", 83), True, True)
    return t, normalizer, splitter, ["<|endoftext|>"]


def word_piece(kind, text):
    normalizer, splitter = WORD_PIECES[kind]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12 if "words" in kind else 100))
    t.normalizer, t.pre_tokenizer = normalizer, splitter
    t.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=1200, show_progress=False, special_tokens=names))
    t.decoder = decoders.WordPiece(prefix="##", cleanup=kind != "bert_raw")
    if kind == "bert_cased":
        t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    else:
        t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                         special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return t, normalizer, splitter, names


def unigram(kind, text):
    normalizer, splitter = UNIGRAMS[kind]
    t = tokenizers.Tokenizer(models.Unigram())
    t.pre_tokenizer = METASPACE(BLANK, "always", True)
    t.train_from_iterator(text, trainers.UnigramTrainer(vocab_size=700, show_progress=False, unk_token="<unk>",
                                                        special_tokens=["<s>", "<pad>", "</s>", "<unk>"]))
    vocab = [tuple(v) for v in json.loads(t.to_str())["model"]["vocab"]]
    random.seed(5)  # scores of a trainer are ties in part
    vocab += [(p, -20.0 - random.random()) for p in (BLANK * 2, "aa", "==", "(x", "\u00e9") if p not in dict(vocab)]
    if kind == "unigram_bytes":
        vocab += [(b, -30.0) for b in BYTES]
    t = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=kind == "unigram_bytes"))
    t.decoder = decoders.Metaspace(BLANK, "never" if kind == "unigram_bytes" else "always", True)
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return t, normalizer, splitter, ["<s>", "<pad>", "</s>", "<unk>"]


MAKERS = {"fallback": fallback, "byte_level": byte_level, "word_piece": word_piece, "unigram": unigram}


def make(folder, kind, path):
    os.makedirs(folder, exist_ok=True)
    if kind == "tekken":
        return tekken(folder, corpus(path))
    group = next(g for g, kinds in GROUPS.items() if kind in kinds)
    t, normalizer, splitter, names = MAKERS[group](kind, corpus(path))
    if normalizer is not None and normalizer != "charsmap":
        t.normalizer = normalizer
    if splitter is not None:
        t.pre_tokenizer = splitter
    t.add_special_tokens([AddedToken(p, normalized=False, special=True) for p in names])
    if kind == "word_piece_txt":
        pieces = t.get_vocab()
        with open(folder + "/vocab.txt", "w", encoding="utf8") as f:
            f.writelines(p + "\n" for p in sorted(pieces, key=pieces.get))
        write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
        return
    t.add_tokens(ADDED)
    text = json.loads(t.to_str())
    if normalizer == "charsmap":
        text["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap()}
        t = tokenizers.Tokenizer.from_str(json.dumps(text))  # the library refuses a broken one
        text = json.loads(t.to_str())
    if kind in ("bert_uncased", "roberta"):
        del text["model"]["type"]  # as older files
    write(folder, "tokenizer.json", text)


def write(folder, name, value):
    json.dump(value, open(os.path.join(folder, name), "w", encoding="utf8"), ensure_ascii=False)


PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
           r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")


def tekken(folder, text):
    """Mistral's form: ranks from 0 in the file, ids behind those of the special tokens."""
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = sequence(SPLIT(Regex(PATTERN), "isolated"), BYTE_LEVEL(False, use_regex=False))
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=900, show_progress=False))
    letters = {chr(c): b for b, c in bytes_to_letters().items()}
    merged = [p for p in sorted(t.get_vocab(), key=t.get_vocab().get) if len(p) > 1]
    tokens = [bytes([b]) for b in range(256)] + [bytes(letters[c] for c in p) for p in merged]
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    write(folder, "tekken.json", {
        "config": {"pattern": PATTERN, "num_vocab_tokens": len(tokens), "default_vocab_size": 20 + len(tokens) - 40,
                   "default_num_special_tokens": 20, "version": "v3"},
        "vocab": [{"rank": k, "token_bytes": base64.b64encode(b).decode(), "token_str": b.decode("utf8", "ignore") or None}
                  for k, b in enumerate(tokens)],
        "special_tokens": [{"rank": k, "token_str": s, "is_control": True} for k, s in enumerate(names)]})


def bytes_to_letters():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: b for b in plain}, **{b: 256 + k for k, b in enumerate(others)}}


def texts(count, seed, path):
    random.seed(seed)
    text = open(path, encoding="utf8").read()
    words, lines = text.split(), [line for line in text.split("\n") if line]
    scripts = ["àéîõüçßŒšıİſK", "日本語漢かなカナ哈、。ｶﾞ", "한국어각각", "русскийтекстйё", "ελληνικάΣς", "العربيةُِّ",
               "हिन्दीक्षि", "ไทยกำ", "עִבְרִית", "ơ̂ǘ̈ḳ́̈ệ", "ⅣⅧ½¼²③٣४੩", "𝔘𝔫𝟘𠀀𠮷", "ﬁﬃ①⒈㍿ﷺ\u0344\u0958\u2126\uf900\ufb1d",
               "。、「」—–…“”«»¿¡§¶†‡‰", "\u1100\u1161\u11a8\u30ab\u3099", "éxe\u0301x"]
    spaces = " \t\u00a0\u3000\u2009\u2028\u0085\u1680\u200b\u00ad\ufeff\u202f\x0b\x0c\x1c\n\r" + BLANK
    emoji = ["😀", "🎉", "👩‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "🇩🇪", "👍🏽", "‍", "️"]
    control = [chr(c) for c in (*range(1, 32), 127, 0x80, 0x8F, 0x9F, 0xFFFD, 0xE000, 0x200E, 0x61C)]
    names = [a.content for a in ADDED] + ["<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "<0x41>", "[INST]",
                                          "<|endoftext|>", "LICENSE", "the work", "<TOOL_CALL>", "##ing", "</w>"]

    def some(of, most):
        return "".join(random.choice(of) for _ in range(random.randint(1, most)))

    def code_point():
        """A code point that Unicode 14 assigns: libraries disagree on the categories of newer ones."""
        c = random.choice([random.randrange(1, n) for n in (0x250, 0x3000, 0x10000, 0x20000, 0x110000)])
        return "x" if unicodedata.category(chr(c)) in ("Cn", "Cs") else chr(c)

    kinds = [
        lambda: " ".join(random.choice(words) for _ in range(random.randint(1, 10))),
        lambda: random.choice(lines) + random.choice(["\n", "\r\n", "\n\n", " \n", "\n "]),
        lambda: some([chr(c) for c in range(32, 127)], 30),
        lambda: some(random.choice(scripts), 16),
        lambda: some(emoji, 6),
        lambda: some(spaces, 10),
        lambda: some(control, 4),
        lambda: random.choice(" \t\n") * random.randint(1, 60),
        lambda: some("0123456789", 12) + random.choice([".", ",", " ", ""]),
        lambda: random.choice(["", " ", "  ", "a", "\n"]) + random.choice(names) + random.choice(["", " ", "  ", "a", "."]),
        lambda: "".join(code_point() for _ in range(random.randint(1, 10))),
        lambda: random.choice(["a", "=", "-", "_", "e\u0301", "\u0301", "哈", "é", "ab", "n't", " .", " 's"]) *
        random.randint(1, 40),
        lambda: random.choice(words) + "".join(chr(random.randrange(0x300, 0x370)) for _ in range(random.randint(1, 4))),
    ]
    for _ in range(count):
        print(json.dumps("".join(random.choice(kinds)() for _ in range(random.randint(1, 6)))))


def expected(folder, all_texts):
    if os.path.exists(folder + "/tekken.json"):
        from transformers.integrations.mistral.tokenizer import MistralConverter
        t = MistralConverter(folder + "/tekken.json").converted()
    elif os.path.exists(folder + "/vocab.txt"):
        vocab = {p.rstrip("\n"): k for k, p in enumerate(open(folder + "/vocab.txt", encoding="utf8"))}
        t = tokenizers.Tokenizer.from_str(tokenizers.BertWordPieceTokenizer(vocab, lowercase=True).to_str())
    else:
        t = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
    ids = [t.encode(text, add_special_tokens=False).ids for text in all_texts]
    # Since 0.23 the library decodes added tokens to their normalized form.
    added = json.loads(t.to_str())["added_tokens"]
    changed = {a["id"] for a in added if a["normalized"] and t.normalizer and t.normalizer.normalize_str(a["content"]) != a["content"]}
    newer = tuple(map(int, tokenizers.__version__.split(".")[:2])) >= (0, 23)
    return ids, [None if newer and changed & {*i} else t.decode(i, skip_special_tokens=False) for i in ids]


def compare(folder, texts_path, ids_path, back_path):
    all_texts = [json.loads(line) for line in open(texts_path)]
    found = [json.loads(line) for line in open(ids_path)]
    back = [json.loads(line) for line in open(back_path)]
    ids, decoded = expected(folder, all_texts)
    assert len(all_texts) == len(found) == len(back) > 0, f"{len(all_texts)} texts, {len(found)} and {len(back)} lines"
    wrong = 0
    for k, text in enumerate(all_texts):
        if found[k] == ids[k] and (decoded is None or decoded[k] in (None, back[k])):
            continue
        wrong += 1
        if wrong <= 5:
            print(f"{text!r}\n  expected {ids[k]}\n  found    {found[k]}")
            if decoded is not None:
                print(f"  expected {decoded[k]!r}\n  found    {back[k]!r}")
    assert wrong == 0, f"{wrong} of {len(all_texts)} texts differ"
    print(f"{len(all_texts)} texts, {sum(map(len, ids))} ids and the decoded texts equal")


if sys.argv[1] == "texts":
    texts(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
elif sys.argv[1] == "kinds":
    print("\n".join(GROUPS[sys.argv[2]]))
else:
    {"make": make, "compare": compare}[sys.argv[1]](*sys.argv[2:])
