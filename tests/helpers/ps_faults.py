"""A worker whose every step can be checked, for tests that break something."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from helpers.faulty_stream import Direction
from helpers.ps_peers import (
    ADD,
    REMOTE,
    Ps,
    Worker,
    get,
    put,
    vector,
)
from ropewalk.core.arrays.dtypes import Array

SMALL = [vector("a"), vector("b", 5)]
# Blocks of their own, and one that two share: together more than is overlapped.
LARGE = [
    vector("c", 300_000),
    vector("d", 150_000),
    vector("e", 7),
    vector("f", 300_000),
    vector("g"),
]
STEPS = pytest.mark.parametrize("variables", [SMALL, LARGE], ids=["small", "large"])
DIRECTIONS: tuple[Direction, ...] = ("send", "receive")
shm = pytest.mark.skipif("shm" not in REMOTE, reason="no shared memory here")


Start = Callable[..., Ps]


class Adder:
    """A worker that adds one to every variable in each step, and checks what came back."""

    def __init__(self, worker: Worker, variables: list[Any]) -> None:
        self.worker = worker
        self.puts = [put(each, ADD, 1) for each in variables]
        self.gets = [get(each) for each in variables]
        self.count = 0
        worker.create(*variables)

    def step(self, **fields: Any) -> None:
        values = self.worker.step(self.puts, self.gets, step_increment=1, **fields)
        self.count += 1
        self.check(values)
        assert self.worker.result.global_step == self.count

    def check(self, values: list[Array]) -> None:
        for value in values:
            assert (value.min(), value.max()) == (self.count, self.count)


def in_thread(work: Callable[[], object], failures: list[BaseException]) -> threading.Thread:
    """Run ``work`` beside the test; what it raises is added to ``failures``."""

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    return thread
