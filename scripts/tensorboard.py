#!/usr/bin/env python3
"""Shows runs in TensorBoard.

    tensorboard.py RUN_DIR.. --out EVENTS [--follow SECONDS]
    tensorboard --logdir EVENTS

Reads metrics.jsonl of each run and writes its numbers as scalars over updates, under EVENTS/<run>. With --follow it looks for new
records until it is interrupted. Needs the package tensorboardX, or torch and tensorboard.
"""

import argparse
import json
import os
import pathlib
import sys
import time

try:
    from tensorboardX import SummaryWriter
except ImportError:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        sys.exit("tensorboard.py: install tensorboardX, or torch and tensorboard")


def scalars(value, path=""):
    """Yields (name, number) of every number in nested objects; lists of objects by their `name`."""
    if isinstance(value, bool):
        yield path, int(value)
    elif isinstance(value, (int, float)):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from scalars(inner, f"{path}/{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict) and "name" in inner:
                yield from scalars(inner, f"{path}/{inner['name']}")


class Run:
    """A run's metrics, read as far as whole lines go."""

    def __init__(self, folder, out):
        self.path = pathlib.Path(folder) / "metrics.jsonl"
        self.file = open(self.path, "rb")
        self.rest = b""
        self.updates = 0
        self.writer = SummaryWriter(os.path.join(out, pathlib.Path(folder).resolve().name))

    def read(self):
        """Takes in what is new; returns the number of records."""
        lines = (self.rest + self.file.read()).split(b"\n")
        self.rest = lines.pop()
        count = 0
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                # A disk that was full for a while leaves part of a line.
                continue
            kind, at = record.pop("kind", "record"), record.pop("time", None)
            # Records about processes carry no updates: they count at the newest.
            self.updates = record.pop("updates", self.updates)
            for name, value in scalars(record):
                self.writer.add_scalar(f"{kind}/{name}", value, global_step=self.updates, walltime=at)
            count += 1
        self.writer.flush()
        return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN_DIR", nargs="+")
    parser.add_argument("--out", metavar="EVENTS", required=True, help="folder of the event files")
    parser.add_argument("--follow", metavar="SECONDS", type=float, help="look for new records this often")
    arguments = parser.parse_args()
    try:
        runs = [Run(folder, arguments.out) for folder in arguments.runs]
    except OSError as error:
        sys.exit(f"tensorboard.py: {error}")
    names = [pathlib.Path(folder).resolve().name for folder in arguments.runs]
    if len(set(names)) < len(names):
        sys.exit("tensorboard.py: two runs have the same name and would share a folder; rename one")
    try:
        while True:
            count = sum(run.read() for run in runs)
            if count:
                print(f"{count} records", file=sys.stderr)
            if not arguments.follow:
                break
            time.sleep(arguments.follow)
    except KeyboardInterrupt:
        pass
    finally:
        for run in runs:
            run.writer.close()


if __name__ == "__main__":
    main()
