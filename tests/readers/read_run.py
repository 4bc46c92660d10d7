"""Reads gpttrain's output with third-party software. Usage: read_run.py RUN_DIR TOKENS_PREFIX TOKENIZER TEXT IDS

TensorBoard's reader loads the events, which must agree with log.jsonl; its hparams plugin reads the settings;
histograms and norms must agree with the checkpoint. h5py opens every shard; the rectangles must
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
from tensorboard.plugins.hparams import metadata


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
    timed = {r["timers_step"]: r["timers"] for r in steps.values() if r["timers_step"] is not None}
    assert sorted(timed) == sorted(steps)[:-1], (sorted(timed), sorted(steps))
    saves = {"time/checkpoint_stall", "time/checkpoint_write"}  # drawn at the step of a save
    assert saves <= tags, sorted(tags)
    for tag in [t for t in tags if t.startswith("time/") and t not in saves]:
        points = {e.step: e.value for e in events.Scalars(tag)}
        assert set(points) <= set(timed), tag
        for step, value in points.items():
            assert math.isclose(value, timed[step][tag[len("time/"):]], rel_tol=1e-6), (tag, step)
    for step, parts in timed.items():  # of several ranks, whose clocks begin apart, the parts may exceed rank 0's step
        whole = max(steps[step]["step_seconds"], sum(parts.values()))
        assert min(parts.values()) >= 0 and math.isclose(sum(parts.values()), whole, rel_tol=1e-5), (step, parts)
    assert any("run/config" in t for t in events.Tags()["tensors"]), events.Tags()["tensors"]
    print(f"tensorboard: {len(tags)} tags, {len(steps)} steps agree with log.jsonl")


def read_hparams(run):
    """Settings and end of the session, through the plugin's own protocol buffers."""
    events = EventAccumulator(run)
    events.Reload()
    content = lambda tag: events.SummaryMetadata("_hparams_/" + tag).plugin_data.content
    experiment = metadata.parse_experiment_plugin_data(content("experiment"))
    start = metadata.parse_session_start_info_plugin_data(content("session_start_info"))
    end = metadata.parse_session_end_info_plugin_data(content("session_end_info"))
    assert {m.name.tag for m in experiment.metric_infos} == {"train/loss", "eval/loss", "perf/tokens_per_second"}
    shown = [i.name for i in experiment.hparam_infos]
    assert sorted(shown) == sorted(start.hparams)
    # the columns of its table until the user chooses others
    assert shown[:5] == ["optim.lr", "optim.type", "train.global_batch", "schedule.type", "optim.weight_decay"], shown[:5]
    config = json.load(open(run + "/config.json"))
    for name, kind in [("model.hidden", "number_value"), ("zero.overlap", "bool_value"), ("optim.type", "string_value")]:
        section, key = name.split(".")
        assert getattr(start.hparams[name], kind) == config[section][key], name
    assert end.status == 1, end
    print(f"hparams: {len(start.hparams)} settings")


def read_histograms(run, weights):
    """Histograms count every element of every parameter once; norms agree with the checkpoint's weights."""
    events = EventAccumulator(run, size_guidance={"histograms": 0})
    events.Reload()
    tags = set(events.Tags()["histograms"])
    last = {}
    for name, values in weights.items():
        for kind in ("weight", "grad"):
            histogram = events.Histograms(f"hist/{kind}/{name}")[-1].histogram_value
            assert histogram.num == values.size == sum(histogram.bucket), (kind, name, histogram.num, values.size)
            assert list(histogram.bucket_limit) == sorted(histogram.bucket_limit)
            last[kind, name] = histogram
        histogram = last["weight", name]
        assert math.isclose(histogram.min, values.min(), rel_tol=1e-6) and math.isclose(histogram.max, values.max(), rel_tol=1e-6)
        assert math.isclose(histogram.sum_squares, (values.astype(np.float64) ** 2).sum(), rel_tol=1e-6), name
        edges = [-np.inf] + list(histogram.bucket_limit)
        edges[-1] = np.inf
        counts = [((values > low) & (values <= high)).sum() for low, high in zip(edges, edges[1:])]
        assert np.abs(np.array(counts) - np.array(histogram.bucket)).sum() <= 2, name  # at the edges
    norm = math.sqrt(sum((v.astype(np.float64) ** 2).sum() for v in weights.values()))
    logged = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    step = max(logged["train/param_norm"])
    assert math.isclose(logged["train/param_norm"][step], norm, rel_tol=1e-6), (logged["train/param_norm"], norm)
    ratios = logged["train/update_ratio"]
    assert 0 < ratios[min(ratios)] < 1, ratios
    assert ratios[step] == 0 or logged["train/lr"][step] > 0, ratios  # the schedule ends at 0
    by_layer = [points[step] for tag, points in logged.items() if tag.startswith("train/grad_norm/")]
    assert math.isclose(math.hypot(*by_layer), logged["train/grad_norm"][step], rel_tol=1e-5), by_layer
    squares = sum(last["grad", name].sum_squares for name in weights)
    assert math.isclose(math.sqrt(squares), logged["train/grad_norm"][step], rel_tol=1e-5)
    assert logged["hist/nonfinite"][step] == 0 and "hist/update_ratio" in tags
    memory = [tag for tag in logged if tag.startswith("mem/")]
    assert {"mem/weights", "mem/gradients", "mem/optimizer", "mem/activations", "mem/buffers"} <= set(memory), memory
    print(f"histograms: {len(tags)} tags, {len(by_layer)} layers, {len(memory)} memory tags")


def read_checkpoint(run):
    step = sorted(glob.glob(run + "/checkpoints/step-*"))[-1]
    manifest = json.load(open(step + "/manifest.json"))
    shapes = {t["name"]: tuple(t["shape"]) for t in manifest["tensors"]}
    filled = {name: np.zeros(shape, dtype=np.int32) for name, shape in shapes.items()}
    whole = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}
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
            region = tuple(slice(b, b + e) for b, e in zip(begin, extent))
            filled[name][region] += 1
            whole[name][region] = data[at:at + int(np.prod(extent))].reshape(extent)
            at += int(np.prod(extent))
        assert at == data.size, name

    for shard in shards:
        with h5py.File(shard, "r") as f:
            assert f.attrs["format"] in ("gpttrain-checkpoint", b"gpttrain-checkpoint")
            f.visititems(visit)
    for name, count in filled.items():
        assert (count == 1).all(), f"{name} is not covered exactly once"
    print(f"h5py: {len(shards)} shards, {len(shapes)} tensors, every element once")
    return {name.removeprefix("master/"): values for name, values in whole.items() if name.startswith("master/")}


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
    read_hparams(run)
    read_histograms(run, read_checkpoint(run))
    read_tokenizer(model, text, ids)
    read_tokens(tokens, model)
