"""Checks a report with Python's own parsers. Usage: read_report.py REPORT RUN_DIR...

The page must be well-formed XML and HTML, refer to nothing outside itself, hold no script, and name its figures and
tables for screen readers. Its numbers must be those of the runs' log.jsonl.
"""
import html.parser
import json
import os
import sys
import xml.etree.ElementTree as ElementTree

HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Checker(html.parser.HTMLParser):
    """Tags are balanced as a browser reads them; nothing is loaded or run."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.headings = [], [], []

    def handle_starttag(self, tag, attributes):
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "image", "use", "foreignobject"}, tag
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "style", "xlink:href"}, (tag, name)
            assert name != "href" or value.startswith("#"), value
            if name == "id":
                self.ids.append(value)
        if tag in {"h1", "h2", "h3"}:
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:], self.getpos())
        self.open.pop()


def records_of(run):
    out = {}
    for line in open(run + "/log.jsonl"):
        record = json.loads(line)
        out.setdefault(record["type"], []).append(record)
    return out


def table_of(root, caption):
    for table in root.iter(HTML + "table"):
        if table.find(HTML + "caption").text == caption:
            return [["".join(cell.itertext()) for cell in row] for row in table.iter(HTML + "tr")]
    raise AssertionError(f"no table {caption!r}")


def check_structure(text, root):
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open, checker.open
    assert len(checker.ids) == len(set(checker.ids)), "ids are not unique"
    assert checker.headings[0] == 1 and checker.headings.count(1) == 1
    ids = set(checker.ids)
    for element in root.iter():
        for name in ("aria-labelledby", "href"):
            for target in (element.get(name) or "").split():
                assert target.lstrip("#") in ids, (name, target)
    figures = list(root.iter(HTML + "figure"))
    for figure in figures:
        assert figure.find(HTML + "figcaption").text
        picture = [svg for svg in figure.iter(SVG + "svg") if svg.get("role") == "img"]
        assert len(picture) == 1 and picture[0].find(SVG + "title").text and picture[0].find(SVG + "desc").text is not None
        assert figure.find(HTML + "details").find(".//" + HTML + "table") is not None
        for number in [v for e in picture[0].iter() for v in (e.get("d"), e.get("x"), e.get("width")) if v]:
            assert "nan" not in number and "inf" not in number, number
    for table in root.iter(HTML + "table"):
        assert table.find(HTML + "caption").text
    assert root.get("lang") == "en"
    for landmark in ("header", "main", "nav", "footer"):
        assert len(list(root.iter(HTML + landmark))) == 1, landmark
    style = next(root.iter(HTML + "style")).text
    assert "prefers-color-scheme:dark" in style and "@import" not in style and "url(" not in style
    return len(figures)


def check_numbers(root, runs):
    logs = [records_of(run) for run in runs]
    rows = table_of(root, "Loss: values")
    columns = {name: k for k, name in enumerate(rows[0])}
    several = len(runs) > 1
    compared = 0
    for run, log in zip(runs, logs):
        of = os.path.basename(run.rstrip("/")) + ": " if several else ""
        training = {r["step"]: r["loss"] for r in log["step"]}
        evaluation = {r["step"]: r["loss"] for r in log.get("eval", [])}
        for row in rows[1:]:
            for name, values in ((of + "training", training), (of + "evaluation", evaluation)):
                shown = row[columns[name]] if name in columns else ""
                if shown:
                    assert shown == f"{values[int(row[0])]:.4f}", (name, row)
                    compared += 1
    summary = {row[0]: row[1:] for row in table_of(root, "Runs beside each other")}
    for k, log in enumerate(logs):
        last = log["step"][-1]
        assert summary["last loss"][k] == f"{last['loss']:.4f}", summary["last loss"]
        assert summary["steps"][k] == f"{last['step']} of {log['start'][-1]['total_steps']}"
        best = min(r["loss"] for r in log["eval"])
        assert summary["best evaluation loss"][k] == f"{best:.4f}"
    if not several:
        memory = table_of(root, "Memory of each rank by category, measured: values")
        assert len(memory) - 1 == len(log["memory"][-1]["ranks"])
        config = {row[0]: row[1] for row in table_of(root, "Configuration")}
        for section, values in logs[0]["start"][-1]["config"].items():
            for key, value in values.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    assert config[f"{section}.{key}"] == str(value), (section, key)
    return compared


if __name__ == "__main__":
    path, runs = sys.argv[1], sys.argv[2:]
    text = open(path, encoding="utf-8").read()
    assert len(text.encode()) <= 2 << 20
    root = ElementTree.fromstring(text)
    figures = check_structure(text, root)
    print(f"report: {figures} figures, {check_numbers(root, runs)} losses agree with log.jsonl")
