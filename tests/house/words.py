#!/usr/bin/env python3
"""words.py SOURCE_DIR: comments, messages and documents use the field's words (left column: words that are not).

Legitimate uses are listed in words_allowed.txt, next to this file.
"""
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

CPP = re.compile(r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
HASH = re.compile(r"(?m)^\s*#.*$")
CPP_FILES = (".h", ".cpp", ".cu", ".cuh")


def prose(path, text):
    """(offset, text) of comments and messages; all of a document."""
    if path.endswith(".md"):
        return [(0, text)]
    if path.endswith((".txt", ".cmake")):
        return []
    found = CPP if path.endswith(CPP_FILES) else HASH
    return [(m.start(), m.group(0)) for m in found.finditer(text)]


def files(root):
    for top in ("autograd", "checkpoint", "configs", "data", "docs", "kernels", "launch", "model", "optim", "parallel", "tests"):
        for folder, _, inside in os.walk(os.path.join(root, top)):
            yield from (os.path.join(folder, n) for n in inside
                        if n.endswith(CPP_FILES + (".md", ".sh", ".py", ".cmake")) or n == "CMakeLists.txt")
    yield from (os.path.join(root, n) for n in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CMakeLists.txt"))


def main():
    root = sys.argv[1]
    with open(os.path.join(root, "tests/house/words_allowed.txt"), encoding="utf-8") as lines:
        allowed = {tuple(line.rstrip("\n").split(": ")) for line in lines if line.strip() and not line.startswith("#")}
    bad, used = 0, set()
    for path in sorted(files(root)):
        file = os.path.relpath(path, root)
        if file.startswith("tests/house/words") or file == "tests/bench/RESULTS.md":
            continue
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read()
        for at, part in prose(file, text):
            for m in FIND.finditer(part):
                key = (file, m.group(0).lower())
                if key in allowed:
                    used.add(key)
                    continue
                line = text.count("\n", 0, at + m.start()) + 1
                print(f'{file}:{line}: "{m.group(0)}": write {list(PRIVATE.values())[int(m.lastgroup[1:])]}')
                bad += 1
    for path, word in sorted(allowed - used):
        print(f"tests/house: {path} has no {word!r}: remove it from the list of allowed words")
        bad += 1
    sys.exit(bad > 0)


main()
