"""A reader beside a job in threads: rows of one moment of all ps, while workers train on."""

import threading

import numpy as np
import pytest

import ropewalk as rw

emb = rw.embedding
KEYS = np.array([0, 1, 2, 3, 2**62, -5, -(2**63), 99])

SNAPSHOTS = 8

pytestmark = pytest.mark.timeout(60)


@pytest.mark.annex("moments")
def test_a_snapshot_has_the_rows_of_one_moment_while_workers_train_on() -> None:
    """A step adds one to every row, on both ps: at any one moment all rows are equal."""
    table = emb.TableConfig("t", 2, initializer=rw.Initializer("zeros"), combiner="sum")
    days = emb.TableConfig("days", 2, 7, initializer=rw.Initializer("zeros"), combiner="sum")
    features = [emb.FeatureConfig("f", table), emb.FeatureConfig("day", days)]
    ids = {"f": KEYS, "day": np.arange(7)}
    taken: list[tuple[set[float], int, dict[str, int]]] = []
    is_read = threading.Event()

    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            embeddings = emb.Embeddings(features, rw.optimizers.SGD(1.0))
        down = {name: np.full((each.size, 2), -1, np.float32) for name, each in ids.items()}

        def step() -> None:
            embeddings.lookup(ids).apply_gradients(down)

        strategy.run(step)
        task = strategy.extended.runtime.task
        reading = threading.Thread(target=read, args=(task.chief_address,))
        if task.is_chief:
            reading.start()
        while not is_read.is_set():
            strategy.run(step)
        if task.is_chief:
            reading.join()

    def read(chief: str) -> None:
        try:
            with emb.Reader(chief, features) as reader:
                for _ in range(SNAPSHOTS):
                    rows = reader.snapshot(ids)
                    values = {float(each) for part in rows.values() for each in part.ravel()}
                    taken.append((values, rows.global_step, dict(rows.pushes)))
        finally:
            is_read.set()

    with rw.testing.LocalCluster(workers=2, ps=2) as cluster:
        cluster.run(train)
    assert len(taken) == SNAPSHOTS
    for values, step, pushes in taken:
        assert values == {float(step)}
        assert set(pushes) == {"chief:0", "worker:0", "worker:1"}
    assert taken[0][1] < taken[-1][1], "training goes on between them"
