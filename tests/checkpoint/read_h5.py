"""Reads every shard of a step with h5py only and compares every tensor with raw files:
<expected>/<name, '/' as '__'>.f32. Prints one line per problem and, when there is none, OK with the number of tensors and data sets."""
import glob
import json
import os
import sys

import h5py
import numpy as np

step, expected = sys.argv[1:3]
whole, sets, problems = {}, 0, []


def visit(name, item):
    global sets
    if not isinstance(item, h5py.Dataset):
        return
    sets += 1
    shape, rects = tuple(item.attrs["global_shape"]), item.attrs["rects"]
    if item.chunks is not None or item.external is not None or item.is_virtual:
        problems.append(f"{name}: not contiguous")
    if item.id.get_offset() % 4096:
        problems.append(f"{name}: at byte {item.id.get_offset()}")
    values = np.asarray(item[...], dtype=np.float32)
    tensor = whole.setdefault(name, np.full(shape, np.nan, np.float32))
    flat, at = values.reshape(-1), 0
    if len(rects) == 1 and values.shape != tuple(rects[0][len(shape):]):
        problems.append(f"{name}: shape {values.shape} for {rects[0]}")
    for r in rects:
        begin, extent = r[: len(shape)], r[len(shape):]
        n = int(np.prod(extent))
        region = tuple(slice(b, b + e) for b, e in zip(begin, extent))
        if not np.isnan(tensor[region]).all():
            problems.append(f"{name}: {r} was written before")
        tensor[region] = flat[at:at + n].reshape(extent)
        at += n
    if at != flat.size:
        problems.append(f"{name}: {flat.size} values, rectangles of {at}")


for path in sorted(glob.glob(os.path.join(step, "rank-*.h5"))):
    words = os.path.basename(path)[5:-3].split(".")  # rank, and the part file's number except for the first
    rank, part = int(words[0]), int(words[1]) if len(words) > 1 else 0
    with h5py.File(path, "r") as f:
        head = dict(f.attrs)
        if bytes(head["format"]) != b"gpttrain-checkpoint" or list(head["version"]) != [1, 0] or head["rank"] != rank or head["part"] != part:
            problems.append(f"{path}: head {head}")
        if f"step-{head['step']:09d}" != os.path.basename(step) or json.loads(head["layout"])["world"] <= rank:
            problems.append(f"{path}: step {head['step']}, layout {head['layout']}")
        f.visititems(visit)

names = {n[:-4].replace("__", "/") for n in os.listdir(expected)}
if names != set(whole):
    problems.append(f"tensors {sorted(names ^ set(whole))} are only on one side")
for name in names & set(whole):
    expected_values = np.fromfile(os.path.join(expected, name.replace("/", "__") + ".f32"), np.float32)
    if expected_values.tobytes() != whole[name].tobytes():
        problems.append(f"{name}: values differ")
print("\n".join(problems) if problems else f"OK {len(whole)} tensors in {sets} data sets")
