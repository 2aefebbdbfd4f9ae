"""Growing tables in clusters of threads: workers share rows, and other ps go on with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.annexes.embedding.keyed.admission import draws_of
from ropewalk.core.checkpoint import CheckpointReader, list_checkpoints
from ropewalk.core.task import TaskId
from ropewalk.testing import LocalCluster

Array = np.ndarray[Any, np.dtype[Any]]
CHIEF = TaskId("chief", 0)
KEYS = np.concatenate([np.arange(-40, 40), np.array([2**63 - 1, -(2**63)])])
emb = rw.embedding

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("plain_process")]


def training(steps: int) -> Callable[[], Array]:
    """Adam on gradients and keys that depend on the global step alone."""

    def program() -> Array:
        strategy = rw.distribute.ParameterServerStrategy()
        table = emb.TableConfig("t", 4, admission=emb.Sightings(2), max_rows=3000)
        with strategy.scope():
            embeddings = emb.Embeddings([emb.FeatureConfig("f", table)], rw.optimizers.Adam(0.1))

        def step(number: int) -> None:
            rng = np.random.default_rng(number)
            rows = embeddings.lookup({"f": rng.choice(KEYS, (8, 3))})
            rows.apply_gradients({"f": rng.standard_normal((8, 4)).astype(np.float32)})

        for number in range(strategy.global_step, strategy.global_step + steps):
            strategy.run(step, args=(number,))
        return np.array(embeddings.lookup({"f": KEYS})["f"])

    return program


def run(model_dir: Path, steps: int, ps: int) -> Any:
    with LocalCluster(workers=0, ps=ps, model_dir=str(model_dir)) as cluster:
        return cluster.run(training(steps))[CHIEF]


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 1)], ids=["2-ps-to-3", "3-ps-to-1"])
def test_another_job_resumes_with_another_number_of_ps(
    tmp_path: Path, first: int, second: int
) -> None:
    """Rows, Adam's state, sightings of keys without a row: as in one long run, to the bit."""
    rows = run(tmp_path / "long", 12, ps=1)
    run(tmp_path / "cut", 7, ps=first)
    np.testing.assert_array_equal(run(tmp_path / "cut", 5, ps=second), rows)


@pytest.mark.parametrize("waits", [0, 6], ids=["at once", "after six steps"])
def test_two_workers_train_the_same_rows_and_every_gradient_counts_once(
    tmp_path: Path, waits: int
) -> None:
    table = emb.TableConfig("t", 2, combiner="sum", staleness_writes=waits)

    def program() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            embeddings = emb.Embeddings([emb.FeatureConfig("f", table)], rw.optimizers.SGD(1.0))
        for _ in range(20):
            rows = embeddings.lookup({"f": KEYS})
            rows.apply_gradients({"f": np.ones((KEYS.size, 2), np.float32)})

    with LocalCluster(workers=2, ps=2, model_dir=str(tmp_path)) as cluster:
        pushed = 20 * len(cluster.run(program))
    reader = CheckpointReader(list_checkpoints(str(tmp_path))[-1].path)
    found: dict[int, Array] = {}
    for columns in reader.columns("t"):
        if "keys" in columns:
            found |= dict(zip(columns["keys"].tolist(), columns["values"], strict=True))
    assert found.keys() == set(KEYS.tolist())
    first = draws_of("t", table.first_values).of(KEYS, 2, np.dtype(np.float32))
    rows = np.stack([found[key] for key in KEYS.tolist()])
    np.testing.assert_allclose(rows, first - pushed, rtol=1e-5)
