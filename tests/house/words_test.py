#!/usr/bin/env python3
"""words_test.py: words.py finds private words in prose and names, and list entries without a use."""
import os
import subprocess
import sys
import tempfile

WORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "words.py")
CLEAN = {
    "README.md": "A trainer.\n",
    "CONTRIBUTING.md": "",
    "CMakeLists.txt": "add_executable(trainer main.cpp)  # wanted\n",
    "kernels/rotary.h": "const int64_t half = dim / 2, most = 1'000, mask = 'x';\n",
    "launch/a.cpp": 'std::string lookup(const Task& task, const char* unknown = R"(seen "half)");\n',
    "tests/house/words_allowed.txt": "# none\n",
    "tests/house/names_allowed.txt": "kernels/*: half: half of a head's dimension\ntests/house/*: house: this folder\n",
    "tests/readers/read.py": 'def read(path):\n    """Whatever is wanted."""\n    return path, "seen"\n',
}
FOUND = {  # file, its text: what is reported, with its line
    ("launch/b.cpp", "\n// Resumes what the twin wrote.\n"): 'launch/b.cpp:2: "twin"',
    ("launch/b.cpp", 'fail("it was told");\n'): 'launch/b.cpp:1: "was told"',
    ("launch/b.cpp", "int total = 0;\nint wanted = 0;\n"): 'launch/b.cpp:2: "wanted"',
    ("launch/b.cpp", "struct DiskRoom {};\n"): 'launch/b.cpp:1: "DiskRoom"',
    ("launch/b.h", "constexpr int kSeenSteps = 1;\n"): 'launch/b.h:1: "kSeenSteps"',
    ("kernels/cuda/b.cuh", "__device__ void judge_step(float x);\n"): 'kernels/cuda/b.cuh:1: "judge_step"',
    ("launch/half.cpp", "int x;\n"): 'launch/half.cpp:1: "half"',  # allowed in kernels/ only
    ("parallel/told/b.h", "int x;\n"): 'parallel/told/b.h:1: "told"',
    ("tests/readers/b.py", "def ask_host():\n    pass\n"): 'tests/readers/b.py:1: "ask_host"',
    ("tests/CMakeLists.txt", "add_executable(test_trouble a.cpp)\n"): 'tests/CMakeLists.txt:1: "test_trouble"',
    ("tests/house/names_allowed.txt", CLEAN["tests/house/names_allowed.txt"] + "launch/*: room: unused\n"):
        "launch/* has no 'room'",
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
    clean = dict(CLEAN, **{"tests/house/rule.py": "x = 1\n"})  # a file in house/ uses the second list entry
    for (name, text), expected in [(("", ""), None), *FOUND.items()]:
        result = run(clean if expected is None else {**clean, name: text})
        lines = result.stdout.splitlines()
        right = lines == [] if expected is None else len(lines) == 1 and expected in lines[0]
        if not right or result.returncode != (expected is not None) or result.stderr:
            print(f"{name or 'clean files'}: expected {expected}, found {result.stdout}{result.stderr}")
            failed += 1
    print(f"{len(FOUND) + 1} cases, {failed} failed")
    sys.exit(failed > 0)


main()
