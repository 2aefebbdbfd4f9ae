"""Steps on embedding tables of two ps: one request for the rows of all tables, then one push.

Ids are drawn before the clock starts, new ones for every step; a step has as many of them however
many tables they are of. Steps of one table and of 26 take turns, so that other processes disturb
both alike.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.table import Table

from benchmarks.cases import LEARNING_RATE, SPARSE
from benchmarks.compare import PEERS, ratio, run_script
from benchmarks.running import connected, parameter_servers
from ropewalk.annexes.embedding.keyed.index_arrays import mixed
from ropewalk.annexes.embedding.options import TableOptions
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.placement import FixedShardsPartitioner
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.rules.built_in.adagrad import Adagrad
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.wire.steps import Operation
from ropewalk.engine import rows

BATCH, WIDTH, ROWS, FEATURES = 106_496, 16, 1_000_000, 26
RULE = Adagrad(learning_rate=LEARNING_RATE["adagrad"])
_INITIALIZER = Initializer("ones")
_STEPS, _WARM_UP = 40, 5
_PEER_TIMEOUT_S = 240.0
_ROWS_MADE = 30  # steps until a growing table has 95 % of its rows
Ids = dict[str, Array]


@contextmanager
def opened(
    tables: int, transport: str, *, grows: bool, num_rows: int = ROWS
) -> Iterator[ParameterSession]:
    """A session with tables of so many rows together, all ones."""
    rows.prepare()
    options = TableOptions(RULE) if grows else None
    # Hashes do not fill all parts alike.
    each = num_rows // tables * (2 if grows else 1)
    definitions = [
        VariableDefinition(f"table {i}", (each, WIDTH), np.dtype("f4"), _INITIALIZER, table=options)
        for i in range(tables)
    ]
    with parameter_servers(2) as addresses, connected(addresses, transport) as session:
        # A table alone is cut over the ps, as TensorFlow's is; many of them share the ps anyway.
        cut = FixedShardsPartitioner(2 if tables == 1 else 1)
        session.define(definitions, {}, create=True, partitioner=cut)
        if not grows:
            session.bind([each.name for each in definitions], RULE)
        yield session


def draw(rng: np.random.Generator, tables: int, *, grows: bool, num_rows: int = ROWS) -> Ids:
    """Ids of a step."""
    numbers = rng.integers(0, num_rows // tables, (tables, BATCH // tables))
    keys = [mixed(each).view(np.int64) if grows else each for each in numbers]
    return {f"table {i}": ids for i, ids in enumerate(keys)}


def push(session: ParameterSession, ids: Ids, gradient: Array) -> None:
    """Push a gradient of the rows of all ids."""
    writes = [
        Write(Operation.APPLY, {table: IndexedSlices(gradient[: own.size], own)})
        for table, own in ids.items()
    ]
    session.step(Step([*writes], increment=1))


def times(table: Table, transports: tuple[str, ...] = ("shm", "tcp")) -> dict[str, float]:
    """Medians of a step, by kind and number of tables, over each transport.

    Returns:
        A lookup and a push with one table, by kind and transport (``"dense, shm"``). Unit: seconds.
    """
    steps = {}
    for transport in transports:
        for grows in (False, True):
            with (
                opened(1, transport, grows=grows) as one,
                opened(FEATURES, transport, grows=grows) as many,
            ):
                lookup, update, both, many_to_one = _medians(one, many, grows=grows)
            name = f"{'growing' if grows else 'dense'}, {transport}"
            steps[name] = both
            speeds = ", ".join(f"{BATCH / each / 1e6:.0f}" for each in (lookup, update))
            table.add_row(
                f"{name}: lookup, push, both",
                f"{lookup * 1e3:.1f}, {update * 1e3:.1f}, {both * 1e3:.1f} ms",
            )
            table.add_row("  pull, push", f"{speeds} M rows/s")
            table.add_row(f"  {FEATURES} tables with as many ids", f"{many_to_one:.2f} x one")
    return steps


def of_many_rows(table: Table, num_rows: int) -> None:
    """A step on a dense table of so many rows, which must fit into memory, beside one of the usual.

    Args:
        table: Where the rows go.
        num_rows: Number of rows of the large table.
    """
    rng = np.random.default_rng(5)
    gradient = rng.standard_normal((BATCH, WIDTH), np.float32)
    took: list[list[float]] = []
    with (
        opened(1, "shm", grows=False) as usual,
        opened(1, "shm", grows=False, num_rows=num_rows) as large,
    ):
        for _ in range(_WARM_UP + _STEPS):
            took.append([])
            for session, count in ((usual, ROWS), (large, num_rows)):
                ids = draw(rng, 1, grows=False, num_rows=count)
                began = time.perf_counter()
                session.rows.lookup_rows(ids)
                push(session, ids, gradient)
                took[-1].append(time.perf_counter() - began)
    of_usual, of_large = np.median(took[_WARM_UP:], axis=0).tolist()
    table.add_row(f"dense, shm, {ROWS / 1e6:g} M rows: both", f"{of_usual * 1e3:.1f} ms")
    table.add_row(f"  {num_rows / 1e6:g} M rows", f"{of_large / of_usual:.2f} x that")


def beside_tensorflow(table: Table, steps: dict[str, float], python: Path) -> None:
    """TensorFlow's step on the dense table, and its ratio to each of ours.

    It has no table that grows: ours stand beside its dense one.

    Args:
        table: Where the rows go.
        steps: What :func:`times` returns.
        python: Interpreter of an environment that has TensorFlow.
    """
    command = [str(python), "-m", PEERS["tensorflow"], "--cases", SPARSE.id]
    outcome = run_script(command, timeout_s=_PEER_TIMEOUT_S)
    if outcome.failure:
        table.add_row("TensorFlow", f"no figures: {outcome.failure}")
        return
    results = {each["case"]: each["median_ms"] for each in outcome.document["results"]}
    theirs = results[SPARSE.id]
    table.add_row(f"{outcome.document['system']}, dense: both", f"{theirs:.1f} ms")
    for name, both in steps.items():
        table.add_row(f"  to {name}", ratio(theirs, both * 1e3))


def _steps(
    sessions: dict[int, ParameterSession], count: int, rng: np.random.Generator, *, grows: bool
) -> Array:
    """Seconds of lookups and pushes, shape ``(count, sessions, 2)``; sessions by their tables."""
    gradient = rng.standard_normal((BATCH, WIDTH), np.float32)
    took = np.empty((count, len(sessions), 2))
    for step in range(count):
        for place, (tables, session) in enumerate(sessions.items()):
            ids = draw(rng, tables, grows=grows)
            began = time.perf_counter()
            session.rows.lookup_rows(ids)
            between = time.perf_counter()
            push(session, ids, gradient)
            took[step, place] = between - began, time.perf_counter() - between
    return took


def _medians(
    one: ParameterSession, many: ParameterSession, *, grows: bool
) -> tuple[float, float, float, float]:
    """Seconds of a lookup, of a push and of both with one table, and how much longer many take.

    The first three are of steps one after the other, as a job makes them. By turns with other
    tables, which displace its rows from the caches, one table takes longer.
    """
    rng = np.random.default_rng(3)
    _steps({1: one, FEATURES: many}, (_ROWS_MADE if grows else 0) + _WARM_UP, rng, grows=grows)
    alone = _steps({1: one}, _WARM_UP + _STEPS, rng, grows=grows)[_WARM_UP:, 0]
    lookup, update = np.median(alone, axis=0).tolist()
    turns = np.median(_steps({1: one, FEATURES: many}, _STEPS, rng, grows=grows).sum(-1), axis=0)
    return lookup, update, float(np.median(alone.sum(-1))), float(turns[1] / turns[0])


def check(steps: int = 3) -> int:
    """Compare every row that is looked up, and its update, with NumPy: to 1e-5.

    Returns:
        How many arrays were compared.
    """
    rng, compared = np.random.default_rng(4), 0
    gradient = rng.standard_normal((BATCH, WIDTH), np.float32)
    for grows in (False, True):
        values: dict[str, dict[int, tuple[Array, Array]]] = {}
        with opened(FEATURES, "shm", grows=grows) as session:
            for _ in range(steps):
                ids = draw(rng, FEATURES, grows=grows)
                found = session.rows.lookup_rows(ids)
                for table, (unique, inverse) in found.items():
                    own = values.setdefault(table, {})
                    start = np.ones(WIDTH, np.float32), np.full(WIDTH, np.float32(0.1))
                    keys, first, where = np.unique(
                        ids[table], return_index=True, return_inverse=True
                    )
                    known = [own.get(key, start) for key in keys.tolist()]
                    wanted = np.stack([w for w, _ in known])
                    rows = unique if inverse is None else unique[inverse]
                    np.testing.assert_allclose(rows[first], wanted, rtol=0, atol=1e-5)
                    sums = np.zeros_like(wanted)
                    np.add.at(sums, where, gradient[: where.size])
                    after = np.stack([a for _, a in known]) + sums**2
                    wanted -= np.float32(RULE.rate(0)) * sums / np.sqrt(after + RULE.epsilon)
                    own |= dict(zip(keys.tolist(), zip(wanted, after, strict=True), strict=True))
                    compared += 1
                push(session, ids, gradient)
    return compared
