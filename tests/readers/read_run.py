"""Reads gpttrain's output with third-party software. Usage: read_run.py RUN_DIR TOKENS_PREFIX TOKENIZER TEXT IDS

TensorBoard's reader loads the events, which must agree with log.jsonl. h5py opens every shard; the rectangles must
cover every tensor exactly once. SentencePiece must encode TEXT to the IDS that gpttrain printed. numpy reads the token
files in Megatron's layout.
"""
import glob
import json
import math
import sys

import h5py
import numpy as np
import sentencepiece
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read_events(run):
    events = EventAccumulator(run)
    events.Reload()
    steps = {}
    for line in open(run + "/log.jsonl"):
        record = json.loads(line)
        if record["type"] == "step":
            steps[record["step"]] = record
    tags = set(events.Tags()["scalars"])
    for tag, key in [("train/loss", "loss"), ("train/lr", "lr"), ("train/grad_norm", "grad_norm"), ("train/samples", "samples"),
                     ("train/tokens", "tokens"), ("perf/step_seconds", "step_seconds"), ("perf/tokens_per_second", "tokens_per_second")]:
        assert tag in tags, f"{tag} is missing; there are {sorted(tags)}"
        points = {e.step: e.value for e in events.Scalars(tag)}
        assert set(points) == set(steps), f"{tag}: steps {sorted(points)} against {sorted(steps)} in log.jsonl"
        for step, value in points.items():
            assert math.isclose(value, steps[step][key], rel_tol=1e-6), (tag, step, value, steps[step][key])
    assert any("run/config" in t for t in events.Tags()["tensors"]), events.Tags()["tensors"]
    print(f"tensorboard: {len(tags)} tags, {len(steps)} steps agree with log.jsonl")


def read_checkpoint(run):
    step = sorted(glob.glob(run + "/checkpoints/step-*"))[-1]
    manifest = json.load(open(step + "/manifest.json"))
    shapes = {t["name"]: tuple(t["shape"]) for t in manifest["tensors"]}
    filled = {name: np.zeros(shape, dtype=np.int32) for name, shape in shapes.items()}
    shards = sorted(glob.glob(step + "/rank-*.h5"))
    assert len(shards) == manifest["layout"]["world"], shards

    def visit(name, item):
        if not isinstance(item, h5py.Dataset):
            return
        name = name.lstrip("/")
        assert tuple(item.attrs["global_shape"]) == shapes[name], name
        data = item[...].ravel()
        assert data.dtype == np.float32 and np.isfinite(data).all(), name
        at = 0
        for rect in np.asarray(item.attrs["rects"]).reshape(-1, 2 * len(shapes[name])):
            begin, extent = rect[:len(rect) // 2], rect[len(rect) // 2:]
            filled[name][tuple(slice(b, b + e) for b, e in zip(begin, extent))] += 1
            at += int(np.prod(extent))
        assert at == data.size, name

    for shard in shards:
        with h5py.File(shard, "r") as f:
            assert f.attrs["format"] in ("gpttrain-checkpoint", b"gpttrain-checkpoint")
            f.visititems(visit)
    for name, count in filled.items():
        assert (count == 1).all(), f"{name} is not covered exactly once"
    print(f"h5py: {len(shards)} shards, {len(shapes)} tensors, every element once")


def read_tokenizer(model, text, ids):
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    expected = [int(x) for x in open(ids).read().split()]
    found = processor.encode(open(text).read().rstrip("\n"))
    assert found == expected, (found[:20], expected[:20])
    print(f"sentencepiece: {len(found)} ids agree, {processor.get_piece_size()} pieces")


def read_tokens(prefix, model):
    raw = open(prefix + ".idx", "rb").read()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    version, = np.frombuffer(raw, "<u8", 1, 9)
    dtype = {1: np.uint8, 4: np.int32, 8: np.uint16}[raw[17]]
    sequences, documents = np.frombuffer(raw, "<u8", 2, 18)
    lengths = np.frombuffer(raw, "<i4", int(sequences), 34)
    pointers = np.frombuffer(raw, "<i8", int(sequences), 34 + 4 * int(sequences))
    table = np.frombuffer(raw, "<i8", int(documents), 34 + 12 * int(sequences))
    assert version == 1 and table[0] == 0 and table[-1] == sequences and len(raw) == 34 + 12 * sequences + 8 * documents
    data = np.fromfile(prefix + ".bin", dtype)
    assert lengths.sum() == data.size
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    width = np.dtype(dtype).itemsize
    first = data[pointers[0] // width:][:lengths[0]].tolist()
    print(f"numpy: {sequences} documents, {data.size} tokens; the first begins {processor.decode(first)[:40]!r}")


if __name__ == "__main__":
    run, tokens, model, text, ids = sys.argv[1:]
    read_events(run)
    read_checkpoint(run)
    read_tokenizer(model, text, ids)
    read_tokens(tokens, model)
