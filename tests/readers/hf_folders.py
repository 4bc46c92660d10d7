"""Hugging Face folders as their families publish them, tiny, and whether copies of them are the same.
make DIR TEXT       writes DIR/llama2, llama3, gemma, mistral (ChatML tokens added), qwen: bf16 weights, config.json,
                    generation_config.json and the tokenizer's files, trained on TEXT
compare A B NAME…   AutoTokenizer of A/NAME and B/NAME must give the same ids and text on texts with special tokens;
                    config.json, generation_config.json, the tokenizer's files and the tensors must be equal
alone DIR TEXT KIND writes DIR/tokenizer.model alone, with Llama 2's settings or (unigram) SentencePiece's own, and ten
                    texts as DIR/lines.txt
ids FOLDER DIR      AutoTokenizer of FOLDER must give DIR/ids.txt for DIR/lines.txt"""
import glob
import json
import os
import shutil
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path += glob.glob(os.path.join(here, "../../build/readers/lib/python3*/site-packages"))  # sentencepiece

import sentencepiece
import tokenizers
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

FILES = [
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json", "config.json"
]
TEXTS = [
    "The model was trained on text.", " leading blank", "two  blanks\tand a tab\nand lines\n\n", "naïve café 日本語 😀",
    "<s>begin</s> end", "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "<start_of_turn>user\nhi<end_of_turn>\n", "if (x[13] != 0) return f(x);", "<bos>a<eos><pad><unk>\u2581b", ""
]


def sentence_piece(path, text, **options):
    sentencepiece.SentencePieceTrainer.train(
        input=text, model_prefix=path + "/m", vocab_size=400, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, **options)
    os.rename(path + "/m.model", path + "/tokenizer.model")
    os.remove(path + "/m.vocab")


def write_json(path, value):
    json.dump(value, open(path, "w"), indent=2)


def byte_level(text, special, begin=None):
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train([text], trainers.BpeTrainer(vocab_size=400, show_progress=False,
                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    if begin:
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=begin + " $A", pair=begin + " $A " + begin + ":1 $B:1",
                                          special_tokens=[(begin, t.token_to_id(begin))])
        ])
    return t


def llama2(path, text):
    sentence_piece(path, text)
    token = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": True}
    write_json(path + "/tokenizer_config.json", {
        "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": False,
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 4096,
        "added_tokens_decoder": {str(k): {"content": s, **token} for k, s in enumerate(["<unk>", "<s>", "</s>"])}})
    write_json(path + "/special_tokens_map.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    return transformers.LlamaConfig, {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}, {}


def llama3(path, text):
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    t = byte_level(text, names, "<|begin_of_text|>")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t, bos_token=names[0], eos_token=names[4],
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}").save_pretrained(path)
    begin, end, turn = (t.token_to_id(names[k]) for k in (0, 1, 4))
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192, "rope_type": "llama3"}
    return transformers.LlamaConfig, {
        "bos_token_id": begin, "eos_token_id": [end, turn], "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rope_scaling": scaling, "tie_word_embeddings": True}, {"do_sample": True, "temperature": 0.6, "top_p": 0.9}


def gemma(path, text):
    sentence_piece(path, text, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>",
                   bos_piece="<bos>", add_dummy_prefix=False, user_defined_symbols=["<start_of_turn>", "<end_of_turn>"])
    transformers.GemmaTokenizerFast(path + "/tokenizer.model").save_pretrained(path)
    return transformers.Gemma2Config, {
        "bos_token_id": 2, "eos_token_id": [1, 5], "pad_token_id": 0, "max_position_embeddings": 8192,
        "query_pre_attn_scalar": 8, "cache_implementation": "hybrid"}, {}


def mistral(path, text):
    sentence_piece(path, text)
    t = transformers.LlamaTokenizerFast(path + "/tokenizer.model", legacy=False)
    t.add_tokens([AddedToken(s, special=True, normalized=False) for s in ("<|im_end|>", "<|im_start|>")])
    t.save_pretrained(path)
    write_json(path + "/added_tokens.json", {"<|im_end|>": 400, "<|im_start|>": 401})
    return transformers.MistralConfig, {
        "bos_token_id": 1, "eos_token_id": 400, "sliding_window": None, "max_position_embeddings": 32768}, {}


def qwen(path, text):
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    t = byte_level(text, names)
    transformers.Qwen2TokenizerFast(tokenizer_object=t, eos_token=names[2], pad_token=names[0]).save_pretrained(path)
    t.model.save(path)  # vocab.json, merges.txt
    first = t.token_to_id(names[0])
    return transformers.Qwen2Config, {
        "bos_token_id": first, "eos_token_id": first + 2, "use_sliding_window": False, "sliding_window": 4096,
        "max_window_layers": 2, "max_position_embeddings": 32768, "rope_theta": 1000000.0}, {
            "pad_token_id": first, "eos_token_id": [first + 2, first], "repetition_penalty": 1.1}


def make(root, text):
    torch.manual_seed(3)
    for family in (llama2, llama3, gemma, mistral, qwen):
        path = os.path.join(root, family.__name__)
        os.makedirs(path)
        kind, keys, generation = family(path, text)
        config = kind(vocab_size=416, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, head_dim=8, **keys)
        model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
        for key, value in generation.items():
            setattr(model.generation_config, key, value)
        model.save_pretrained(path)

    for family in ("llama2", "gemma"):
        bare = os.path.join(root, family + "_bare")
        shutil.copytree(os.path.join(root, family), bare)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            if os.path.exists(os.path.join(bare, name)):
                os.remove(os.path.join(bare, name))


LINES = [
    "The model was trained on text.", " leading blank", "two  blanks   and three", "trailing blank  ", "na\u00efve caf\u00e9",
    "\u65e5\u672c\u8a9e \U0001f600", "if (x[13] != 0) return f(x);", "a\ttab", "\u2581b 12345", "GNU GENERAL PUBLIC LICENSE"
]


def alone(path, text, kind):
    os.makedirs(path)
    if kind == "llama2":
        sentence_piece(path, text)
    else:
        sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=path + "/tokenizer", vocab_size=400,
                                                 model_type=kind, minloglevel=2)
    open(path + "/lines.txt", "w", encoding="utf8").write("".join(line + "\n" for line in LINES))


def ids(folder, path):
    t = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [[int(x) for x in row.split()] for row in open(path + "/ids.txt")]
    assert len(rows) == len(LINES) == 10
    for line, expected in zip(LINES, rows):
        assert t(line)["input_ids"] == expected, f"{line!r}: expected {expected}, found {t(line)['input_ids']}"
    print("ten texts: the same ids")


def same_json(a, b, name):
    if not os.path.exists(a + "/" + name):
        assert not os.path.exists(b + "/" + name), f"{b}/{name} is new"
        return
    one, two = (json.load(open(p + "/" + name)) for p in (a, b))
    assert one == two, f"{name}: {[(k, one.get(k), two.get(k)) for k in {**one, **two} if one.get(k) != two.get(k)]}"


def compare(a, b):
    one, two = (transformers.AutoTokenizer.from_pretrained(p) for p in (a, b))
    for text in TEXTS:
        for special in (True, False):
            ids = one(text, add_special_tokens=special)["input_ids"]
            assert two(text, add_special_tokens=special)["input_ids"] == ids, f"{b}: {text!r}"
            assert two.decode(ids) == one.decode(ids), f"{b}: {text!r}"
    assert one.chat_template == two.chat_template and one.special_tokens_map == two.special_tokens_map
    for name in ("config.json", "generation_config.json"):
        same_json(a, b, name)
    for name in FILES[:-1]:
        assert os.path.exists(a + "/" + name) == os.path.exists(b + "/" + name), f"{b}/{name}"
        if os.path.exists(a + "/" + name):
            assert open(a + "/" + name, "rb").read() == open(b + "/" + name, "rb").read(), f"{b}/{name}"
    first, second = (load_file(p + "/model.safetensors") for p in (a, b))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert second[name].dtype == tensor.dtype and torch.equal(second[name], tensor), name
    model, info = transformers.AutoModelForCausalLM.from_pretrained(b, output_loading_info=True)
    assert not any(info.values()), info


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
    elif sys.argv[1] in ("alone", "ids"):
        globals()[sys.argv[1]](*sys.argv[2:])
    else:
        for name in sys.argv[4:]:
            compare(sys.argv[2] + "/" + name, sys.argv[3] + "/" + name)
            print(name + ": the same")
