"""Hugging Face folders around a SentencePiece model, for comparison with ours.
make FOLDER KIND TEXT     trains a BPE on a text and writes it as tokenizer.model with the tokenizer.json that transformers
                          makes of it, and a tokenizer_config.json that adds tokens: llama (a blank before every text
                          between added tokens), mistral (before the first one only), gemma (none), always (unless there
                          is one; class without a rule of its own)
names FOLDER              replaces added_tokens_decoder by added_tokens.json and special_tokens_map.json
bos FOLDER KIND           a byte-level BPE whose texts begin or end with special tokens: template, roberta, flags (class of
                          Llama, which replaces the template), no_flags, neox, gpt2
"""
import json
import os
import struct
import sys

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

BLANK = "\u2581"
BYTES = [f"<0x{b:02X}>" for b in range(256)]
SPECIAL = {"gemma": ["<pad>", "<eos>", "<bos>", "<unk>"]}
CONFIG = {
    "llama": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
              "pad_token": "[PAD]"},
    "mistral": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                "legacy": False, "add_bos_token": True, "add_eos_token": True},
    "gemma": {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>",
              "pad_token": "<pad>"},
    "always": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
               "unk_token": "<unk>"},
}
ADDED = [
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<|im_end|>", special=True, normalized=False),
    AddedToken("[PAD]", special=True, normalized=False),
    AddedToken("<tool_call>", special=False, normalized=True),
    AddedToken("license", special=False, normalized=False, single_word=True),
    AddedToken("<|user|>", special=True, normalized=False, rstrip=True),
    AddedToken("<|mask|>", special=True, normalized=False, lstrip=True),
]


def message(number, body):
    out, size = bytes([number << 3 | 2]), len(body)
    while size >= 0x80:
        out, size = out + bytes([size & 0x7F | 0x80]), size >> 7
    return out + bytes([size]) + body


def sentence_piece(pieces, special, prefix):
    """tokenizer.model: pieces by id, a score for each by its rank."""
    out = b""
    for k, piece in enumerate(pieces):
        kind = 2 if piece == "<unk>" else 3 if piece in special else 6 if piece in BYTES else 1
        out += message(1, message(1, piece.encode()) + b"\x15" + struct.pack("<f", -float(k)) + bytes([0x18, kind]))
    out += message(2, bytes([0x18, 2, 0xB0, 1, 1, 0x98, 2, 1]))  # BPE, split_by_whitespace, byte_fallback
    return out + message(3, message(1, b"identity") + bytes([0x18, prefix, 0x20, 0, 0x28, 1]))


def train(kind, text):
    t = tokenizers.Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", BLANK)
    t.pre_tokenizer = pre_tokenizers.Split(Regex(BLANK + "*[^" + BLANK + "]+|" + BLANK + "+"), "isolated")
    t.train_from_iterator(text.split("\n"), trainers.BpeTrainer(vocab_size=900, show_progress=False))
    vocab = t.get_vocab()
    special = SPECIAL.get(kind, ["<unk>", "<s>", "</s>"])
    merged = sorted((p for p in vocab if len(p) > 1), key=vocab.get)
    more = ["\t" if kind == "gemma" else BLANK * 3, "\n"]
    return list(dict.fromkeys([*special, *BYTES, *more, *merged, *sorted(p for p in vocab if len(p) == 1)]))


def fast(kind, pieces):
    """As transformers' LlamaConverter and GemmaConverter: every split of a piece in two is a merge, by its score."""
    ids = {p: k for k, p in enumerate(pieces)}
    merges = []
    for k, piece in enumerate(pieces):
        splits = [(piece[:n], piece[n:]) for n in range(1, len(piece)) if piece[:n] in ids and piece[n:] in ids]
        merges += sorted(splits, key=lambda s: (ids[s[0]], ids[s[1]]))
    t = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", BLANK)
    strip = [] if kind == "gemma" else [decoders.Strip(" ", 1, 0)]
    t.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    if kind == "llama":
        t.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), replace])
    elif kind == "gemma":
        t.normalizer = replace
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        scheme = "first" if kind == "mistral" else "always"
        t.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme=scheme, split=False)
    if kind == "always":
        t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    t.add_special_tokens([AddedToken(p, normalized=False, special=True) for p in SPECIAL.get(kind, ["<unk>", "<s>", "</s>"])])
    for token in ADDED:
        t.add_tokens([token])
    return t


def write(folder, name, value):
    json.dump(value, open(os.path.join(folder, name), "w", encoding="utf8"), ensure_ascii=False)


def make(folder, kind, path):
    os.makedirs(folder, exist_ok=True)
    pieces = train(kind, open(path, encoding="utf8").read())
    special = SPECIAL.get(kind, ["<unk>", "<s>", "</s>"])
    open(folder + "/tokenizer.model", "wb").write(sentence_piece(pieces, special, kind != "gemma"))
    t = fast(kind, pieces)
    t.save(folder + "/tokenizer.json")
    decoder = {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in json.loads(t.to_str())["added_tokens"]}
    write(folder, "tokenizer_config.json", {**CONFIG[kind], "added_tokens_decoder": decoder,
                                            "clean_up_tokenization_spaces": False})


def names(folder):
    config = json.load(open(folder + "/tokenizer_config.json"))
    decoder = config.pop("added_tokens_decoder")
    pieces = min(int(k) for k, v in decoder.items() if v["content"] == "<|im_start|>")
    plain = {v["content"]: int(k) for k, v in decoder.items() if int(k) >= pieces}
    write(folder, "added_tokens.json", plain)
    tokens = {k: config.pop(k) for k in list(config) if k.endswith("_token")}
    write(folder, "special_tokens_map.json", {**tokens, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    write(folder, "tokenizer_config.json", config)
    if os.path.exists(folder + "/tokenizer.json"):  # flags that these files cannot say
        t = json.load(open(folder + "/tokenizer.json"))
        t["added_tokens"] = [a for a in t["added_tokens"] if a["content"] != "license" or a["id"] >= pieces]
        for a in t["added_tokens"]:
            if a["id"] >= pieces:
                special = a["content"] in ("<|im_start|>", "<|im_end|>", "[PAD]")
                a.update(single_word=False, lstrip=False, rstrip=False, special=special, normalized=not special)
        write(folder, "tokenizer.json", t)


def bos(folder, kind):
    os.makedirs(folder, exist_ok=True)
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens(["<|begin|>", "<|end|>", "<|pad|>"])
    b, e = (("<|begin|>", 256), ("<|end|>", 257))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": b[0], "eos_token": e[0]}
    template = processors.TemplateProcessing(single="<|begin|> $A <|end|>", special_tokens=[b, e])
    if kind == "template":
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    if kind == "roberta":
        t.post_processor = processors.RobertaProcessing(sep=e, cls=b, trim_offsets=False, add_prefix_space=False)
    if kind in ("flags", "no_flags"):
        t.post_processor = template
        config.update(tokenizer_class="LlamaTokenizerFast", add_bos_token=kind == "flags", unk_token="<|pad|>")
    if kind == "neox":
        config.update(tokenizer_class="GPTNeoXTokenizerFast", add_bos_token=True, add_eos_token=True, unk_token="<|pad|>")
    if kind == "gpt2":
        t.post_processor = processors.ByteLevel(trim_offsets=False)
        config.update(tokenizer_class="GPT2TokenizerFast", add_bos_token=True, unk_token="<|pad|>")
    t.save(folder + "/tokenizer.json")
    write(folder, "tokenizer_config.json", config)


{"make": make, "names": names, "bos": bos}[sys.argv[1]](*sys.argv[2:])
