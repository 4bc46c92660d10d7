#!/usr/bin/env python3
"""Mutation testing: injects the faults of mutants.txt and reports which of them the tests catch.

  tests/mutation/run.py                 builds a copy of the tree in build/mutation, tests every fault
  tests/mutation/run.py 3 17 20-29      only these
  tests/mutation/run.py --limit-s 1800  starts no further fault after that many seconds
  tests/mutation/run.py --markdown FILE writes the table of docs/mutation.md
  tests/mutation/run.py --check         builds nothing: every original occurs once, every named test exists

All faults are compiled into one set of programs. Each is guarded by gt_mutant(N), enabled by the environment variable
GPT_MUTANT, so a fault costs a run of its tests, not a build. Caught: a case fails, crashes, or takes longer than a
minute plus ten times the fault-free run. Exits with 1 when a fault survives, with 2 when the fault-free run fails.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutation"
SWITCH = """#pragma once
#include <cstdlib>
inline bool gt_mutant(int n) {
  static const char* const on = std::getenv("GPT_MUTANT");
  static const int which = on != nullptr ? std::atoi(on) : 0;
  return which == n;
}
"""


class Mutant:
    def __init__(self, number, head, original, fault):
        self.number, self.original, self.fault = number, original, fault
        self.file, programs, self.filter = [part.strip() for part in head.split("|")]
        self.programs = programs.split(",")

    def mutated(self):
        switch = f"gt_mutant({self.number})"
        if self.original.endswith("{"):  # a condition and its block
            return f"{self.fault[:-1].rstrip()[:-1]} && {switch} || !{switch} && {condition_of(self.original)}) {{"
        if self.original.endswith(";"):
            if self.original.startswith("const "):  # a declaration: the fault replaces its value
                left, old = self.original[:-1].split(" = ", 1)
                new = self.fault[:-1].split(" = ", 1)[1]
                return f"{left} = {switch} ? ({new}) : ({old});"
            return f"{{ if ({switch}) {{ {self.fault} }} else {{ {self.original} }} }}"
        if self.original.startswith("."):  # a designated initializer
            left, old = self.original.split(" = ", 1)
            return f"{left} = {switch} ? ({self.fault.split(' = ', 1)[1]}) : ({old})"
        return f"({switch} ? ({self.fault}) : ({self.original}))"


def condition_of(text):
    return text[text.index("(") + 1 : text.rindex(")")]


def mutants():
    blocks = (ROOT / "tests/mutation/mutants.txt").read_text().split("\n== ")[1:]
    out = []
    for number, block in enumerate(blocks, 1):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        original = [line[2:] for line in lines if line.startswith("- ")]
        fault = [line[2:] for line in lines if line.startswith("+ ")]
        if len(original) != 1 or len(fault) != 1:
            sys.exit(f"mutants.txt: block {number}: one line with - and one with + expected")
        out.append(Mutant(number, lines[0], original[0], fault[0]))
    return out


def case_names(folder):
    """Names of the test cases in tests/<folder>, those of the parity macro included."""
    names = set()
    for path in (ROOT / "tests" / folder).rglob("*.cpp"):
        text = re.sub(r'"\s*\n\s*"', "", path.read_text())
        names.update(re.findall(r'TEST_CASE\(\s*"((?:[^"\\]|\\.)*)"[,)]', text))
        for before, after in re.findall(r'TEST_CASE\("([^"]*)" #entry "([^"]*)"\)', text):
            for header in ("ops.h", "optimizer_ops.h"):
                ops = re.findall(r"^ +X\((\w+),", (ROOT / "kernels" / header).read_text(), re.M)
                names.update(before + op + after for op in ops)
    return names


def matches(word, name):
    """Whether Catch2's pattern `word` selects the case: * is a wildcard at the ends only."""
    begin, middle, end = re.fullmatch(r"(\*?)(.*?)(\*?)", word.lower()).groups()
    name = name.lower()
    if begin and end:
        return middle in name
    return name.endswith(middle) if begin else name.startswith(middle) if end else name == middle


def problems(all_mutants):
    """What no longer fits the tree: originals of mutants.txt, its filters, the tests that docs/mutation.md names."""
    out = []
    names = {folder: case_names(folder) for m in all_mutants for folder in m.programs}
    tags = {folder: set(re.findall(r"\[R\d+\]", "".join(p.read_text() for p in (ROOT / "tests" / folder).rglob("*.cpp"))))
            for folder in names}
    for m in all_mutants:
        path = ROOT / m.file
        found = path.read_text().count(m.original) if path.is_file() else 0
        if found != 1:
            out.append(f"mutants.txt: {m.number}: once in {m.file} expected, found {found} times: {m.original}")
        # A fault is compiled as an expression or a statement of its own.
        if m.original.count("(") != m.original.count(")") or m.fault.count("(") != m.fault.count(")"):
            out.append(f"mutants.txt: {m.number}: neither an expression nor a statement: {m.original}")
        for word in m.filter.split(","):
            of_file, tag = re.fullmatch(r"\*\[#(\w+)\]", word), re.fullmatch(r"\*(\[R\d+\])", word)
            if not any(next((ROOT / "tests" / p).rglob(f"{of_file[1]}.cpp"), None) if of_file else
                       tag[1] in tags[p] if tag else any(matches(word, name) for name in names[p]) for p in m.programs):
                out.append(f"mutants.txt: {m.number}: no case of test_{', test_'.join(m.programs)} matches {word}")
    everything = set().union(*names.values())
    table = re.findall(r"^\| (\d+) \| `([^`]*)` \| (.*) \|$", (ROOT / "docs/mutation.md").read_text(), re.M)
    for number, file, by in table:
        if by != "**survived**" and by not in everything:
            out.append(f"docs/mutation.md: {number}: no test case is called: {by}")
        if int(number) > len(all_mutants) or all_mutants[int(number) - 1].file != file:
            out.append(f"docs/mutation.md: {number}: mutants.txt has another file than {file}")
    missing = set(range(1, len(all_mutants) + 1)) - {int(row[0]) for row in table}
    if missing:
        out.append(f"docs/mutation.md: no row for {sorted(missing)}")
    return out


def insert_faults(all_mutants):
    """Copies the working tree with every fault in it. Unchanged files keep their modification time."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
                            text=True)
    texts = {name: (ROOT / name).read_bytes() for name in listed.stdout.split("\n") if name and (ROOT / name).is_file()}
    texts["mutant.h"] = SWITCH.encode()
    for m in all_mutants:
        text = texts[m.file].decode()
        if text.count(m.original) != 1:
            sys.exit(f"mutant {m.number}: {m.file} has {text.count(m.original)} times: {m.original}")
        texts[m.file] = text.replace(m.original, m.mutated()).encode()
    for name in {m.file for m in all_mutants}:
        texts[name] = b'#include "mutant.h"\n' + texts[name]
    for name, data in texts.items():
        path = COPY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)
            shutil.copymode(ROOT / name, path) if name != "mutant.h" else None


def build(programs, jobs):
    cmake = ["cmake", "--preset", "cpu", "-DGPT_CUDA=OFF"]
    targets = ["--target"] + [f"test_{p}" for p in sorted(programs)]  # which build gpttrain where they start it
    for command in (cmake, ["cmake", "--build", "--preset", "cpu", "-j", str(jobs)] + targets):
        if subprocess.run(command, cwd=COPY, stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit(f"mutation: {' '.join(command)} failed")


def run(program, tests, number, limit_s):
    """Returns the run's seconds and its failure; "" when every case passed."""
    env = dict(os.environ, GPT_MUTANT=str(number))
    begin = time.monotonic()
    command = [str(COPY / "build/cpu" / f"test_{program}"), "-#", "-a", tests]
    try:
        done = subprocess.run(command, cwd=COPY, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit_s)
    except subprocess.TimeoutExpired:
        return limit_s, "took too long"
    text = done.stdout.decode(errors="replace")
    if "No tests ran" in text:  # some patterns of the filter may belong to another program
        sys.exit(f"mutant {number}: no case of test_{program} matches {tests}")
    failed = "" if done.returncode in (0, 77) else first_failure(text, done.returncode)
    return time.monotonic() - begin, failed


def first_failure(text, code):
    """Returns the name of the first failed case: the lines between the rulers of Catch2's first report."""
    lines = text.splitlines()
    for k, line in enumerate(lines):
        if line.startswith("-----") and k + 1 < len(lines):
            name = []
            for more in lines[k + 1 :]:
                if more.startswith("-----"):
                    return " ".join(name)
                name.append(more.strip())
    return f"exit code {code}"


def chosen(words, count):
    if not words:
        return set(range(1, count + 1))
    out = set()
    for word in words:
        first, _, last = word.partition("-")
        out.update(range(int(first), int(last or first) + 1))
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("numbers", nargs="*")
    parser.add_argument("--limit-s", type=float, default=1e9)
    parser.add_argument("--markdown")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    begin = time.monotonic()
    everything = mutants()
    if args.check:
        bad = problems(everything)
        print("\n".join(bad) if bad else f"{len(everything)} faults fit the tree")
        return 1 if bad else 0
    insert_faults(everything)
    selected = [m for m in everything if m.number in chosen(args.numbers, len(everything))]
    build({p for m in selected for p in m.programs}, args.jobs)
    calm, rows = {}, []
    for m in selected:
        if time.monotonic() - begin > args.limit_s:
            break
        by = ""
        for program in m.programs:
            if (program, m.filter) not in calm:
                seconds, failed = run(program, m.filter, 0, 3600)
                if failed:
                    print(f"mutation: without a fault, test_{program} fails: {failed}")
                    sys.exit(2)
                calm[program, m.filter] = seconds
            by = run(program, m.filter, m.number, 60 + 10 * calm[program, m.filter])[1]
            if by:
                break
        rows.append((m, by))
        print(f"{m.number:3d} {'caught  ' if by else 'SURVIVED'} {m.file}: {m.original}  ->  {m.fault}" +
              (f"   [{by}]" if by else ""), flush=True)
    caught = sum(1 for _, by in rows if by)
    print(f"{caught} of {len(rows)} faults caught ({len(everything)} in the list)")
    if args.markdown:
        with open(args.markdown, "w", encoding="utf-8") as out:
            for m, by in rows:
                out.write(f"| {m.number} | `{m.file}` | {by or '**survived**'} |\n")
    return 0 if caught == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
