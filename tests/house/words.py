#!/usr/bin/env python3
"""words.py SOURCE_DIR: comments, messages, documents and names use the field's words (left column: words that are not).

Legitimate uses are listed in words_allowed.txt (prose) and names_allowed.txt (names), next to this file.
"""
import fnmatch
import os
import re
import sys

# Words of an older, private vocabulary, and what to write instead.
PRIVATE = {
    r"of 8 bits|8-bit numbers": "FP8, int8",
    r"strangers?": "independent modules; foreign files",
    r"floors": "layers",
    r"rooms": "buffer slot, workspace, scratch",
    r"stretch(?:es)?|at a stroke": "graph segment, one launch",
    r"(?:is|are|was|were|be|been|being) (?:told|said)|told|spoke": "passed, returned, reported, recorded",
    r"wish(?:es)?": "control flags",
    r"judges?|judged|bad steps?": "anomaly check, anomalous step",
    r"trouble": "fault, error",
    r"take[sn]? up|took up": "resume",
    r"hand(?:s|ed|ing)? over|pass(?:es|ed|ing)? on": "forward, propagate",
    r"publish(?:es)?": "all-gather updated weights",
    r"tensor ranks?": "TP ranks",
    r"key heads?": "KV heads",
    r"blocks left out|left-out blocks": "dropped layers",
    r"to the bit|the same bits|same bits|bit for bit|no bit of": "bitwise identical",
    r"companions?|twins?": "say what it is",
    r"goes by|go by": "is driven by",
    r"verbs": "subcommand",
    r"behind the host's back": "asynchronous",
    r"looked at": "read, measured, inspected",
    r"largest seen": "amax",
    r"says?|tells?|asks?|asked|wants?|wanted|knows?|knew|forgets?|forgot(?:ten)?|looks? (?:at|for)":
        "return, report, request, need, hold, read: software neither speaks nor thinks",
    r"noted": "recorded",
    r"plants?|planted|probes?|probed|probing": "fault injection hook, injected fault",
    r"(?:of|in) halves|half (?:weights|values|buffers?|tensors?)": "16-bit values, bf16/fp16",
    r"sums? over rows": "column sums; bias gradient",
    r"scopes": "FSDP units",
    r"visits|visiting": "execution order; list, take, use",
    r"(?<!tests/)house(?!/)": "repository",
    r"(?<!`)room(?!`|:|\(\))": "buffer slot, workspace, scratch, free memory, space",
}
FIND = re.compile(r"\b(?:" + "|".join(f"(?P<w{i}>{w})" for i, w in enumerate(PRIVATE)) + r")\b", re.I)

# Words of that vocabulary in names of types, functions, variables, files and CMake targets, and what to write instead.
# Words that the field uses too (part, piece, product, inverse, together) are left to the reader.
PRIVATE_NAMES = {word: instead for words, instead in {
    "ask asks asked say says said speak speaks spoke speaker tell tells told untold":
        "pass, report, request, print, or what is passed",
    "companion companions twin twins": "what it is",
    "floor floors house stranger strangers": "layer, repository, independent",
    "forget forgets forgot know knows knew": "drop, hold, support, cover",
    "half halves": "16-bit, bf16, fp16, compute_dtype",
    "judge judges judged judging": "check, compare",
    "look looks looked seen": "read, check, found, visited, amax",
    "noted publish publishes": "recorded, all_gather",
    "place places room rooms": "position, slot, offset, scratch, capacity",
    "plant plants planted probe probes probed": "inject, injected fault",
    "scope scopes": "unit",
    "stretch stretches": "segment",
    "trouble": "fault, error",
    "verb verbs": "subcommand",
    "visit visits visiting": "take, use, pass",
    "want wants wanted wish wishes": "expected, requested, required, flags",
}.items() for word in words.split()}

CPP = re.compile(r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
CHARACTER = re.compile(r"(?<!\w)'(?:\\.|[^'\\\n])+'")  # not the separators of 1'000
HASH = re.compile(r"(?m)^\s*#.*$")
HASH_OR_TEXT = re.compile(r'""".*?"""|#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
CPP_FILES = (".h", ".cpp", ".cu", ".cuh")


def prose(path, text):
    """(offset, text) of comments and messages; all of a document."""
    if path.endswith(".md"):
        return [(0, text)]
    if path.endswith((".txt", ".cmake")):
        return []
    found = CPP if path.endswith(CPP_FILES) else HASH
    return [(m.start(), m.group(0)) for m in found.finditer(text)]


def names(path, text):
    """(offset, name) of the file's path and of the identifiers outside comments and strings."""
    yield from ((0, os.path.splitext(part)[0]) for part in path.split("/"))
    if path.endswith((".md", ".sh")):
        return
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    code = CHARACTER.sub(blank, CPP.sub(blank, text)) if path.endswith(CPP_FILES) else HASH_OR_TEXT.sub(blank, text)
    yield from ((m.start(), m.group(0)) for m in re.finditer(r"[A-Za-z_]\w*", code))


def words_of(name):
    """take_room, TakeRoom, kTakeRoom -> take, room."""
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def files(root):
    for top in ("autograd", "checkpoint", "configs", "data", "docs", "kernels", "launch", "model", "optim", "parallel", "tests"):
        for folder, _, inside in os.walk(os.path.join(root, top)):
            yield from (os.path.join(folder, n) for n in inside
                        if n.endswith(CPP_FILES + (".md", ".sh", ".py", ".cmake")) or n == "CMakeLists.txt")
    yield from (os.path.join(root, n) for n in ("README.md", "CONTRIBUTING.md", "CMakeLists.txt"))


def lines_of(root, name):
    with open(os.path.join(root, "tests/house", name), encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines if line.strip() and not line.startswith("#")]


def main():
    root = sys.argv[1]
    allowed = {tuple(line.split(": ")) for line in lines_of(root, "words_allowed.txt")}
    allowed_names = {}  # name -> patterns of the files in which it is legitimate
    for line in lines_of(root, "names_allowed.txt"):
        inside, listed, _reason = line.split(": ")
        for name in listed.split():
            allowed_names.setdefault(name, []).extend(inside.split())
    bad, used = 0, set()

    def report(where, word, instead):
        nonlocal bad
        print(f'{where}: "{word}": write {instead}')
        bad += 1

    for path in sorted(files(root)):
        file = os.path.relpath(path, root)
        if file.startswith("tests/house/words") or file == "tests/bench/RESULTS.md":
            continue
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read()
        line = lambda at: f"{file}:{text.count(chr(10), 0, at) + 1}"
        for at, part in prose(file, text):
            for m in FIND.finditer(part):
                key = (file, m.group(0).lower())
                if key in allowed:
                    used.add(key)
                else:
                    report(line(at + m.start()), m.group(0), list(PRIVATE.values())[int(m.lastgroup[1:])])
        for at, name in names(file, text):
            word = next((w for w in words_of(name) if w in PRIVATE_NAMES), None)
            if word is None:
                continue
            patterns = [p for p in allowed_names.get(name, []) if fnmatch.fnmatch(file, p)]
            used.update((p, name) for p in patterns)
            if not patterns:
                report(line(at), name, f"{PRIVATE_NAMES[word]} for {word!r}")
    for path, word in sorted((allowed | {(p, n) for n in allowed_names for p in allowed_names[n]}) - used):
        print(f"tests/house: {path} has no {word!r}: remove it from the list of allowed words")
        bad += 1
    sys.exit(bad > 0)


main()
