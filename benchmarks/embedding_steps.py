"""Steps on embedding tables of two ps: one request for the rows of all tables, then one push.

Ids are drawn before the clock starts, new ones for every step; a step has as many of them however
many tables they are of.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from rich.table import Table

from benchmarks.cases import LEARNING_RATE
from benchmarks.running import connected, parameter_servers
from windlass.client.ps.parameter_session import ParameterSession
from windlass.client.ps.push_plans import PushPayload, Write
from windlass.core.arrays.dtypes import Array
from windlass.core.arrays.indexed_slices import IndexedSlices
from windlass.core.rules.built_in.adagrad import Adagrad
from windlass.core.rules.definitions import VariableDefinition
from windlass.core.rules.initializers import Initializer
from windlass.core.rules.tables import TableOptions
from windlass.core.wire.steps import Operation
from windlass.engine import rows
from windlass.engine.keyed.hashing import mixed

BATCH, WIDTH, ROWS, FEATURES = 106_496, 16, 1_000_000, 26
RULE = Adagrad(learning_rate=LEARNING_RATE["adagrad"])
_INITIALIZER = Initializer("ones")
_STEPS, _WARM_UP = 20, 5
Ids = dict[str, Array]


@contextmanager
def opened(tables: int, transport: str, *, grows: bool) -> Iterator[ParameterSession]:
    """A session with tables of ``ROWS`` rows together, all ones."""
    rows.prepare()
    options = TableOptions(RULE) if grows else None
    # Hashes do not fill all parts alike.
    each = ROWS // tables * (2 if grows else 1)
    definitions = [
        VariableDefinition(f"table {i}", (each, WIDTH), np.dtype("f4"), _INITIALIZER, table=options)
        for i in range(tables)
    ]
    with parameter_servers(2) as addresses, connected(addresses, transport) as session:
        session.define(definitions, {}, create=True)
        if not grows:
            session.bind([each.name for each in definitions], RULE)
        yield session


def draw(rng: np.random.Generator, tables: int, *, grows: bool) -> Ids:
    """Ids of a step."""
    numbers = rng.integers(0, ROWS // tables, (tables, BATCH // tables))
    keys = [mixed(each).view(np.int64) if grows else each for each in numbers]
    return {f"table {i}": ids for i, ids in enumerate(keys)}


def step(session: ParameterSession, ids: Ids, gradient: Array) -> None:
    """Look up all ids, and push a gradient of their rows."""
    session.lookup_rows(ids)
    writes = [
        Write(table, Operation.APPLY, IndexedSlices(gradient[: own.size], own))
        for table, own in ids.items()
    ]
    session.step(PushPayload({}, writes=writes), step_increment=1)


def times(table: Table, transports: tuple[str, ...] = ("shm", "tcp")) -> None:
    """Medians of a step, by kind and number of tables, over each transport."""
    rng = np.random.default_rng(3)
    gradient = rng.standard_normal((BATCH, WIDTH), np.float32)
    for transport in transports:
        for grows in (False, True):
            found = []
            for tables in (1, FEATURES):
                took = []
                with opened(tables, transport, grows=grows) as session:
                    for _ in range(_WARM_UP + _STEPS):
                        ids = draw(rng, tables, grows=grows)
                        began = time.perf_counter()
                        step(session, ids, gradient)
                        took.append(time.perf_counter() - began)
                found.append(f"{np.median(took[_WARM_UP:]) * 1e3:.1f}")
            kind = "growing" if grows else "dense"
            table.add_row(
                f"step, {kind}, 1 and {FEATURES} tables, {transport}", ", ".join(found) + " ms"
            )


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
                found = session.lookup_rows(ids)
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
                step(session, ids, gradient)
    return compared
