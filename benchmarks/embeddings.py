"""Growing embedding tables: the key index, pulls and pushes of one process, and steps of two ps.

    python -m benchmarks.embeddings                # the table; a minute
    python -m benchmarks.embeddings --keys 5e7     # grow to 50 million keys; 5 GB
    python -m benchmarks.embeddings --rows 1e8     # steps on a dense table of 13 GB with its slots
    python -m benchmarks.embeddings --check        # compares every step with NumPy, times none
    python -m benchmarks.embeddings --steps --peers-python .venv-peers/bin/python  # and TensorFlow

Times are those of one core, as this thread's processor time, so other processes distort them less;
beside them stands the wall time of the slowest batch while growing. Those of steps are wall times.
Keys are drawn before the clock starts. Quote medians, compare ratios, and say how busy the machine
was.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import embedding_steps
from ropewalk.annexes.embedding.features.row_cache import (
    COUNT_BYTES,
    ROW_BYTES,
    TrainedLookup,
    TrainedRows,
)
from ropewalk.annexes.embedding.keyed.definition import TableDefinition
from ropewalk.annexes.embedding.keyed.distinct import distinct
from ropewalk.annexes.embedding.keyed.index import KeyIndex
from ropewalk.annexes.embedding.keyed.index_arrays import mixed
from ropewalk.annexes.embedding.keyed.row_store import counts_of
from ropewalk.annexes.embedding.keyed.table import KeyedTable, prepare
from ropewalk.annexes.embedding.options import Sightings, TableOptions
from ropewalk.annexes.embedding.update_rules import GroupFtrl, RowwiseAdagrad
from ropewalk.client.ps.distinct_rows import DistinctRows
from ropewalk.core.arrays.buffers import BufferPools
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules.built_in.adagrad import Adagrad, Ftrl
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.rules.update_rules import UpdateRule

BATCH = 106_496  # ids of a step, as the sparse cases of benchmarks.step
WIDTH = 16
ROWS = 1_000_000
ZIPF, ZIPF_IDS = 1.05, 10_000_000
RULES: tuple[UpdateRule, ...] = (
    SGD(), SGD(momentum=0.9), Adagrad(), RowwiseAdagrad(), Adam(), Ftrl(), GroupFtrl(),
)  # fmt: skip
_ROUNDS = 20
_MAX_KEYS = 1 << 33


def _definition(rule: UpdateRule, max_rows: int, **options: Any) -> TableDefinition:
    return TableDefinition(name="table", dim=WIDTH, rule=rule, max_rows=max_rows, **options)


def random_keys(rng: np.random.Generator, count: int) -> Array:
    """Any int64."""
    return rng.integers(-(2**63), 2**63 - 1, count)


def median_s(part: Callable[[Array], object], draw: Callable[[], Array]) -> float:
    """Processor time of a batch."""
    took = []
    for _ in range(_ROUNDS):
        keys = draw()
        began = time.thread_time()
        part(keys)
        took.append(time.thread_time() - began)
    return float(np.median(took))


# -- times -------------------------------------------------------------------------------------


def growth(count: int, table: Table) -> None:
    """Insert so many keys, batch by batch; then find some, and others."""
    rng = np.random.default_rng(0)
    keys = random_keys(rng, count)
    index, cpu, wall = KeyIndex("index", count), [], []
    for start in range(0, count, BATCH):
        batch = keys[start : start + BATCH]
        numbers = np.arange(start, start + batch.size)
        began, began_cpu = time.perf_counter(), time.thread_time()
        index.insert(batch, numbers)
        wall.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - began_cpu)
    name = f"{count / 1e6:g} M keys"
    table.add_row(f"insert, growing to {name}", f"{count / sum(cpu) / 1e6:.1f} M/s")
    table.add_row(
        "  the slowest batch: cpu, wall", f"{max(cpu) * 1e3:.0f}, {max(wall) * 1e3:.0f} ms"
    )
    table.add_row("  memory", f"{index.num_bytes / count:.1f} bytes a key")
    hit = median_s(index.find, lambda: keys[rng.integers(0, count, BATCH)])
    table.add_row(f"find, of {name}", f"{BATCH / hit / 1e6:.1f} M/s")
    miss = median_s(index.find, lambda: random_keys(rng, BATCH))
    table.add_row("  keys that are not there", f"{BATCH / miss / 1e6:.1f} M/s")
    removed = []

    def remove(batch: Array) -> None:
        removed.append(batch)
        index.remove(batch)

    gone = median_s(remove, lambda: np.unique(keys[rng.integers(0, count, BATCH)]))
    table.add_row("remove", f"{BATCH / gone / 1e6:.1f} M/s")
    back = median_s(lambda batch: index.insert(batch, batch & 0xFF), removed.pop)
    table.add_row("insert, with room for them", f"{BATCH / back / 1e6:.1f} M/s")


def hostile(table: Table) -> None:
    """Keys that collide in hashes that somebody may know, against random ones."""
    rng, count = np.random.default_rng(0), 1 << 20

    def cpu_s(keys: Array) -> float:
        took = []
        for _ in range(3):
            index = KeyIndex("index", count)
            began = time.thread_time()
            for start in range(0, count, BATCH):
                index.insert(keys[start : start + BATCH], keys[start : start + BATCH] & 0xFF)
            index.find(keys)
            took.append(time.thread_time() - began)
        return min(took)

    usual = cpu_s(random_keys(rng, count))
    step = np.arange(count)
    alike = random_keys(rng, 40 * count)
    alike = alike[np.argsort(mixed(alike))][:count].copy()
    for name, keys in (
        ("ascending", step),
        ("multiples of 2**32", step << 32),
        ("equal high bits of a hash", alike),
    ):
        table.add_row(f"insert and find, {name}", f"{cpu_s(keys) / usual:.2f} x random keys")


def steps(rule: UpdateRule, table: Table) -> None:
    """Pull and push of rows that are there, and of new ones."""
    rng = np.random.default_rng(0)
    rows = KeyedTable(_definition(rule, 4 * ROWS))
    gradients = rng.standard_normal((BATCH, WIDTH), np.float32)
    keys = random_keys(rng, ROWS)
    made = []
    for start in range(0, ROWS, BATCH):
        batch = keys[start : start + BATCH]
        began = time.thread_time()
        rows.push(batch, gradients[: batch.size], 0)
        made.append((time.thread_time() - began) / batch.size)
    out = np.empty((BATCH, WIDTH), np.float32)
    draw = lambda: keys[rng.integers(0, ROWS, BATCH)]  # noqa: E731
    pull = median_s(lambda batch: rows.read(batch, out), draw)
    push = median_s(lambda batch: rows.push(batch, gradients, 1), draw)
    name = rule.name + (" with momentum" if getattr(rule, "momentum", 0) else "")
    speeds = (BATCH / pull, BATCH / push, 1 / float(np.median(made)))
    text = ", ".join(f"{speed / 1e6:.1f}" for speed in speeds)
    table.add_row(f"{name}: pull, push, push of new rows", f"{text} M/s")


def cached(table: Table, workers: int) -> None:
    """A worker's cache at skewed ids: what it saves, and what it costs."""
    rng, rows, staleness, steps = np.random.default_rng(0), 100_000, 100, 300
    ranks = np.cumsum(np.arange(1, ZIPF_IDS + 1) ** -ZIPF)
    options = TableOptions(rule=Adagrad())
    definition = VariableDefinition("t", (ROWS, WIDTH), np.dtype(np.float32), table=options)
    width = options.state_elements(WIDTH)
    cache = TrainedRows(definition, staleness, rows * (4 * width + ROW_BYTES + COUNT_BYTES))
    updates = np.zeros(ZIPF_IDS, np.int64)
    memory = BufferPools()
    took, trained, saved, whole = [], [], [], []
    for _ in range(steps):
        batches = (np.searchsorted(ranks, rng.random(BATCH) * ranks[-1]) for _ in range(workers))
        ids = next(batches)
        began = time.thread_time()
        lookup = cache.begin(ids)
        assert isinstance(lookup, TrainedLookup)
        states = np.ones((lookup.whole.size, width), np.float32)
        counts_of(states)[:] = updates[lookup.wanted_states]
        cache.finish_states(lookup, np.zeros((lookup.missing.size, WIDTH), np.float32), states)
        took.append(time.thread_time() - began)
        pulled = lookup.missing.size + lookup.whole.size
        saved.append(1 - pulled / lookup.keys.size)
        whole.append(lookup.whole.size / pulled)
        gradients = np.zeros((lookup.keys.size, WIDTH), np.float32)
        began = time.thread_time()
        distinct_rows = DistinctRows(lookup.keys, lookup.keys, None)
        cache.pushed(distinct_rows, distinct_rows.sums(gradients, memory), 0)
        trained.append(time.thread_time() - began)
        for each in (ids, *batches):
            updates[np.unique(each)] += 1
    late = slice(steps // 2, None)
    name = f"cache of {rows} rows, {staleness} lookups, Zipf {ZIPF} of {ZIPF_IDS / 1e6:g} M ids"
    table.add_row(f"{name}, {workers} workers", f"{np.mean(saved[late]):.1%} fewer rows pulled")
    table.add_row("  of those, with slots", f"{np.mean(whole[late]):.1%}")
    table.add_row("  a lookup in it", f"{np.median(took[late]) * 1e3:.1f} ms")
    table.add_row("  gradients for it", f"{np.median(trained[late]) * 1e3:.1f} ms")


def others(table: Table) -> None:
    """What else a step does."""
    rng = np.random.default_rng(0)
    unique = median_s(lambda keys: distinct("table", keys), lambda: rng.integers(0, ROWS, BATCH))
    table.add_row("distinct keys", f"{BATCH / unique / 1e6:.1f} M/s")
    rows = KeyedTable(_definition(SGD(), ROWS))
    out = np.empty((BATCH, WIDTH), np.float32)
    unknown = median_s(lambda keys: rows.read(keys, out), lambda: random_keys(rng, BATCH))
    table.add_row("pull of unknown keys", f"{BATCH / unknown / 1e6:.1f} M/s")
    full = KeyedTable(_definition(SGD(), ROWS, evicts="least_recent"))
    gradients = np.zeros((BATCH, WIDTH), np.float32)
    for _ in range(ROWS // BATCH + 1):
        full.push(random_keys(rng, BATCH), gradients, 0)
    push = median_s(lambda keys: full.push(keys, gradients, 1), lambda: random_keys(rng, BATCH))
    table.add_row("push of new rows that evict others", f"{BATCH / push / 1e6:.1f} M/s")


# -- check -------------------------------------------------------------------------------------


def check(steps: int = 20) -> int:
    """Compare every read with a dict of rows in NumPy; values to the bit, Adagrad's to 1e-5.

    Returns:
        How many arrays were compared.
    """
    compared = 0
    for rule, tolerance in ((SGD(learning_rate=0.5), 0.0), (Adagrad(learning_rate=0.5), 1e-5)):
        for admission in (None, Sightings(2)):
            rng = np.random.default_rng(2)
            definition = _definition(
                rule, 200_000, initializer=Initializer("random_normal", 3), admission=admission
            )
            table = KeyedTable(definition)
            rows: dict[int, list[Array]] = {}
            seen: dict[int, int] = {}
            for step in range(steps):
                keys = mixed(rng.zipf(1.2, 5000)).view(np.int64)
                gradients = rng.standard_normal((keys.size, WIDTH), np.float32)
                unique, inverse = np.unique(keys, return_inverse=True)
                before = table.read(unique)
                _expect(before, unique, rows, tolerance)
                table.push(keys, gradients, step)
                sums = np.zeros((unique.size, WIDTH), np.float32)
                np.add.at(sums, inverse, gradients)
                for key, first, g in zip(unique.tolist(), before, sums, strict=True):
                    seen[key] = seen.get(key, 0) + 1
                    if key in rows or admission is None or seen[key] >= 2:
                        row = rows.setdefault(key, [first, np.full(WIDTH, np.float32(0.1))])
                        _update(rule, row, g)
                _expect(table.read(unique), unique, rows, tolerance)
                compared += 2
            assert len(table) == len(rows)
    return compared


def _update(rule: UpdateRule, row: list[Array], g: Array) -> None:
    if isinstance(rule, SGD):
        row[0] = row[0] - np.float32(rule.rate(0)) * g
        return
    row[1] = row[1] + g * g
    row[0] = row[0] - np.float32(rule.rate(0)) * g / np.sqrt(row[1] + np.float32(1e-7))


def _expect(values: Array, keys: Array, rows: dict[int, list[Array]], tolerance: float) -> None:
    expected = values.copy()
    for i, key in enumerate(keys.tolist()):
        if key in rows:
            expected[i] = rows[key][0]
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keys", type=float, default=1e7, help="the index grows to so many")
    parser.add_argument("--steps", action="store_true", help="only the steps of two ps")
    parser.add_argument("--rows", type=float, help="only steps on a dense table of so many rows")
    parser.add_argument("--peers-python", type=Path, help="a python that has TensorFlow")
    arguments = parser.parse_args()
    for rule in RULES:
        # So that no batch is timed while NumPy stands in.
        prepare(_definition(rule, ROWS))
    if arguments.check:
        print(f"{check() + embedding_steps.check()} arrays are those of NumPy")
        return
    if not 1 <= arguments.keys <= _MAX_KEYS:
        parser.error(f"--keys is {arguments.keys:g}; it must be in [1, {_MAX_KEYS}]")
    table = Table("", "")
    loads = [os.getloadavg()[0]]
    if arguments.rows:
        embedding_steps.of_many_rows(table, int(arguments.rows))
        Console().print(table)
        print(f"load before and after: {loads[0]:.1f}, {os.getloadavg()[0]:.1f}")
        return
    medians = embedding_steps.times(table)
    loads.append(os.getloadavg()[0])
    if arguments.peers_python:
        embedding_steps.beside_tensorflow(table, medians, arguments.peers_python)
        loads.append(os.getloadavg()[0])
    Console().print(table)
    print(f"load before and after: {', '.join(f'{load:.1f}' for load in loads)}")
    if arguments.steps:
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, no second thread
    table = Table("one core", "")
    load = os.getloadavg()[0]
    growth(int(arguments.keys), table)
    hostile(table)
    others(table)
    for workers in (1, 2):
        cached(table, workers)
    for rule in RULES:
        steps(rule, table)
    Console().print(table)
    print(f"load before and after: {load:.1f}, {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
