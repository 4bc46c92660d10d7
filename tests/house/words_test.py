#!/usr/bin/env python3
"""words_test.py: words.py finds private words in prose, none in names, and list entries without a use."""
import os
import subprocess
import sys
import tempfile

WORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "words.py")
CLEAN = {
    "README.md": "A trainer.\n",
    "CONTRIBUTING.md": "",
    "SECURITY.md": "",
    "CMakeLists.txt": "add_executable(trainer main.cpp)\n",
    "launch/a.cpp": "// What the pair says.\nint wanted = 0, seen = 1;\nstruct DiskRoom {};\n",
    "launch/b.cpp": "int x;\n",
    "tests/house/words_allowed.txt": "# none\nlaunch/a.cpp: says\n",
    "tests/readers/read.py": "def ask_host(path):\n    return path\n",
}
FOUND = {  # file, its text: what is reported, with its line
    ("launch/b.cpp", "\n// Resumes what the twin wrote.\n"): 'launch/b.cpp:2: "twin"',
    ("launch/b.cpp", 'fail("it was told");\n'): 'launch/b.cpp:1: "was told"',
    ("kernels/cuda/b.cuh", "int x;  // the largest seen\n"): 'kernels/cuda/b.cuh:1: "largest seen"',
    ("SECURITY.md", "\nIt knows.\n"): 'SECURITY.md:2: "knows"',
    ("tests/readers/read.py", "# looks at it\n"): 'tests/readers/read.py:1: "looks at"',
    ("tests/house/words_allowed.txt", CLEAN["tests/house/words_allowed.txt"] + "launch/b.cpp: room\n"):
        "launch/b.cpp has no 'room'",
}


def run(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                f.write(text)
        return subprocess.run([sys.executable, WORDS, root], capture_output=True, text=True)


def main():
    failed = 0
    for (name, text), expected in [(("", ""), None), *FOUND.items()]:
        result = run(CLEAN if expected is None else {**CLEAN, name: text})
        lines = result.stdout.splitlines()
        right = lines == [] if expected is None else len(lines) == 1 and expected in lines[0]
        if not right or result.returncode != (expected is not None) or result.stderr:
            print(f"{name or 'clean files'}: expected {expected}, found {result.stdout}{result.stderr}")
            failed += 1
    print(f"{len(FOUND) + 1} cases, {failed} failed")
    sys.exit(failed > 0)


main()
