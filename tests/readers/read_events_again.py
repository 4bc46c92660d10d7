"""Prints the steps that TensorBoard's reader shows of a run that wrote OLD, and then of one that goes on in NEW.
Usage: read_events_again.py FOLDER OLD NEW (names in FOLDER)"""
import os
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

folder, old, new = sys.argv[1:]
aside = folder + ".aside"
os.rename(os.path.join(folder, new), aside)
events = EventAccumulator(folder)
events.Reload()
print("before", [e.step for e in events.Scalars("train/loss")])
os.rename(aside, os.path.join(folder, new))
events.Reload()
points = events.Scalars("train/loss")
print("after", [e.step for e in points])
assert sorted(e.wall_time for e in points) == [e.wall_time for e in points], points
