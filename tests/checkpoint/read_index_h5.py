"""Reads index.h5 of a step with h5py only and compares every tensor with raw files: <expected>/<name, '/' as '__'>.f32. Every
parameter must also exist as model/<name>; elements of a missing shard are NaN. Prints one line per problem, or OK."""
import glob
import os
import sys

import h5py
import numpy as np

step, expected = sys.argv[1:3]
problems, found, models = [], {}, 0


def visit(name, item):
    if isinstance(item, h5py.Dataset):
        if not item.is_virtual:
            problems.append(f"{name}: not virtual")
        found[name] = np.asarray(item[...], dtype=np.float32)


with h5py.File(os.path.join(step, "index.h5"), "r") as f:
    f.visititems(visit)

names = {n[:-4].replace("__", "/") for n in os.listdir(expected)}
for name in names:
    expected_values = np.fromfile(os.path.join(expected, name.replace("/", "__") + ".f32"), np.float32)
    views = [name] + (["model/" + name[7:]] if name.startswith("master/") else [])
    models += len(views) - 1
    for view in views:
        if view not in found or expected_values.tobytes() != found[view].tobytes():
            problems.append(f"{view}: " + ("missing" if view not in found else "values differ"))
extra = set(found) - names - {"model/" + n[7:] for n in names if n.startswith("master/")}
if extra:
    problems.append(f"only in the index: {sorted(extra)}")

gone = sorted(glob.glob(os.path.join(step, "rank-*.h5")))[0]
os.rename(gone, gone + ".away")
with h5py.File(os.path.join(step, "index.h5"), "r") as f:
    holes = sum(int(np.isnan(np.asarray(f[n][...], dtype=np.float32)).sum()) for n in names)
os.rename(gone + ".away", gone)
if holes == 0:
    problems.append("a missing shard does not show")
print("\n".join(problems) if problems else f"OK {len(names)} tensors, {models} of them also as model/")
