"""Input of several workers, played by threads, and what each of their replicas got of it.

Before every step the threads ask each other whether anybody has data: what a strategy of several
workers does over the network.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import numpy as np

import ropewalk as rw
from ropewalk.distribute import MirroredStrategy, PerReplica, Strategy, StrategyExtended
from ropewalk.distribute.data import (
    AutoShardPolicy,
    Dataset,
    Options,
    as_dataset,
    from_arrays,
    from_files,
)

Steps = list[list[list[Any]]]
"""Of one worker: what each of its replicas got in each step."""

OFF, AUTO, FILE, DATA, HINT = (
    AutoShardPolicy.OFF,
    AutoShardPolicy.AUTO,
    AutoShardPolicy.FILE,
    AutoShardPolicy.DATA,
    AutoShardPolicy.HINT,
)


# -- datasets, and what replicas get of them -----------------------------------------------------


def batches(examples: int, size: int) -> Dataset:
    """``range(examples).batch(size)``, of arrays."""
    return from_arrays(np.arange(examples), size, shuffle=False)


def listed(examples: int, size: int) -> Dataset:
    """The same batches in a list: nothing is known of their size."""
    return as_dataset(list(batches(examples, size)))


def of_files(files: int, each: int = 4) -> Dataset:
    """File k has the examples 10 k, 10 k + 1, ..."""
    return from_files(
        [str(k) for k in range(files)], lambda name: (int(name) * 10 + i for i in range(each))
    )


def with_policy(dataset: Dataset, policy: AutoShardPolicy) -> Dataset:
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def lists(element: Any) -> list[list[Any]]:
    """What each replica gets of an element."""
    parts = element.values if isinstance(element, PerReplica) else [element]
    return [np.asarray(part).tolist() for part in parts]


def steps_of(dataset: Any) -> Steps:
    return [lists(element) for element in dataset]


def examples_of(steps: Steps) -> list[Any]:
    return list(chain.from_iterable(chain.from_iterable(steps)))


def mirrored(replicas: int) -> MirroredStrategy:
    rw.config.set_logical_cpu_devices(replicas)
    return MirroredStrategy()


# -- several workers -----------------------------------------------------------------------------


class Workers:
    """Several that ask each other whether anybody has data, and wait for each other's answers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked = 0
        self._answers = [False] * count
        self._meeting = threading.Barrier(count, timeout=5)

    def any(self, worker: int, mine: bool) -> bool:
        self.asked += worker == 0
        self._answers[worker] = mine
        self._meeting.wait()
        somebody = any(self._answers)
        self._meeting.wait()
        return somebody

    def leave(self) -> None:
        """Let nobody wait for one that has failed."""
        self._meeting.abort()


class OneOfSeveral(StrategyExtended):
    """Of one worker among several: in sync with the others, or for itself as with parameter
    servers.
    """

    def __init__(
        self, strategy: Strategy, workers: Workers, worker: int, replicas: int, *, in_sync: bool
    ) -> None:
        super().__init__(strategy, [f"/device:CPU:{i}" for i in range(replicas)])
        self._workers, self._worker, self._in_sync = workers, worker, in_sync
        self.divides_input = in_sync

    @property
    def num_replicas_in_sync(self) -> int:
        return len(self.replica_devices) * (self._workers.count if self._in_sync else 1)

    @property
    def num_input_pipelines(self) -> int:
        return self._workers.count

    @property
    def input_pipeline_id(self) -> int:
        return self._worker

    def any_worker(self, mine: bool) -> bool:
        return self._workers.any(self._worker, mine)


class OneOfSeveralStrategy(Strategy):
    def __init__(self, workers: Workers, worker: int, replicas: int, *, in_sync: bool) -> None:
        super().__init__(OneOfSeveral(self, workers, worker, replicas, in_sync=in_sync))


def on_workers(
    distribute: Callable[[Strategy], Any],
    workers: int,
    replicas: int,
    *,
    in_sync: bool = True,
    start: int = 0,
    stop: int | None = None,
) -> list[Steps]:
    """What every worker gets of ``distribute(strategy)``, resumed at step ``start``."""
    group = Workers(workers)

    def work(worker: int) -> Steps:
        try:
            strategy = OneOfSeveralStrategy(group, worker, replicas, in_sync=in_sync)
            iterator = iter(distribute(strategy))
            if start:
                iterator.load_state_dict({"steps": start})
            return steps_of(islice(iterator, stop))
        except BaseException:
            group.leave()
            raise

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, worker) for worker in range(workers)]
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]


def shared(dataset: Dataset, workers: int, replicas: int, **how: Any) -> list[Steps]:
    """What every worker gets of one dataset."""
    return on_workers(
        lambda strategy: strategy.experimental_distribute_dataset(dataset), workers, replicas, **how
    )
