"""The program of :mod:`.counting_job`: each task counts its own steps, and what it saw.

Arguments: ``--chief-counts``, ``--rows N``, ``--workers N``, ``--readers N`` (the last workers,
which make no steps), ``--counts N``: one for each share, ``--pause-s N`` between two steps,
``--keyed``: each step looks up rows of a growing table, too, counts in those of two keys, and makes
one of a new key, for which another one has to go.

It writes ``history-<slot>``, one line per event: ``push`` and ``read i`` before a call, ``pushed``
and ``value i […]`` after its answer, each with the time. A task that is started again goes on in
it. A read is of one of the counts, in turn, so that it tells of one ps.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ropewalk as rw

SLOTS = 4  # the chief and three workers
NEW = 1_000_000  # from here on keys that are used once, so many for each task


class Recorder:
    """Writes what one task does, at once: it may be killed at any moment."""

    def __init__(self, slot: int) -> None:
        path = Path(f"history-{slot}")
        before = path.read_text() if path.exists() else ""
        self.pushed = before.count("\npushed ")
        self._progress = Path(f"steps-{slot}")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._write("begin")
        self.say(str(self.pushed))

    def _write(self, event: str) -> None:
        os.write(self._file, f"{event} {time.monotonic():.6f}\n".encode())

    def say(self, progress: str) -> None:
        """How many steps were made, for the test."""
        new = self._progress.with_suffix(".new")
        new.write_text(progress)
        new.replace(self._progress)

    def push(self, step: Callable[[], object]) -> None:
        """Make a step."""
        self._write("push")
        step()
        self._write("pushed")
        self.pushed += 1
        self.say(str(self.pushed))

    def read(self, index: int, count: rw.Variable) -> None:
        """Read one of the counts."""
        self._write(f"read {index}")
        value = count.read_value().tolist()
        self._write(f"value {index} {json.dumps(value, separators=(',', ':'))}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chief-counts", action="store_true")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--readers", type=int, default=0)
    parser.add_argument("--counts", type=int, required=True)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--keyed", action="store_true")
    options = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    task, ps = config["task"], options.counts
    slot = 0 if task["type"] == "chief" else task["index"] + 1

    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        counts = [rw.Variable(np.zeros(SLOTS, np.int64), name=f"count{i}") for i in range(ps)]
        table = rw.Variable(np.zeros((options.rows, 32), np.float32), name="table")
        keyed = growing_table() if options.keyed else None
    counts_steps = slot <= options.workers - options.readers and (slot or options.chief_counts)
    one = (np.arange(SLOTS) == slot).astype(np.int64)
    ones = np.ones(table.shape, np.float32)

    def step() -> None:
        for count in counts:
            count.assign_add(one)
        table.assign_add(ones)
        if keyed is not None:
            keys = [slot, SLOTS, NEW * (slot + 1) + recorder.pushed]
            rows = keyed.lookup({"key": keys})
            rows.apply_gradients({"key": -np.ones((len(keys), 2), np.float32)})

    recorder, turn = Recorder(slot), 0
    while not Path("enough").exists():
        if counts_steps:
            recorder.push(lambda: strategy.run(step))
        recorder.read(turn % ps, counts[turn % ps])
        turn += 1
        time.sleep(options.pause_s if slot or options.chief_counts else 0.05)
    recorder.say(f"{recorder.pushed} in all")
    if slot == 0:
        while not (Path("over").exists() and all_have_ended(options.workers)):
            time.sleep(0.05)
        for index, count in enumerate(counts):
            recorder.read(index, count)
        found = [count.read_value().tolist() for count in counts]
        says = {"counts": found, "table": table.read_value()[[0, -1], 0].tolist()}
        if keyed is not None:
            says["keyed"] = keyed.lookup({"key": range(SLOTS + 1)})["key"][:, 0].tolist()
        print(json.dumps(says))


def growing_table() -> "rw.embedding.Embeddings":
    """One in which a gradient of -1 counts one."""
    config = rw.embedding.TableConfig(
        "keyed", dim=2, initializer=rw.Initializer("zeros"), max_rows=128
    )
    features = [rw.embedding.FeatureConfig("key", config)]
    return rw.embedding.Embeddings(features, rw.optimizers.SGD(1.0))


def all_have_ended(workers: int) -> bool:
    """Whether all tasks have said how many steps they made."""
    files = [Path(f"steps-{slot}") for slot in range(workers + 1)]
    return all(file.exists() and file.read_text().endswith("all") for file in files)


if __name__ == "__main__":
    main()
