"""What is measured: the same cases for ropewalk and for the systems it is compared with.

Nothing but the standard library is imported, so that every virtual environment can import this.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEARNING_RATE = {"sgd": 0.1, "adam": 0.001, "adagrad": 0.1}


@dataclass(frozen=True)
class Case:
    """``count`` float32 variables of one shape, all pulled and all pushed in every step."""

    id: str
    title: str
    count: int
    shape: tuple[int, ...]
    optimizer: str

    @property
    def bytes_both_ways(self) -> int:
        """Bytes of all gradients and of all values."""
        return 2 * 4 * self.count * math.prod(self.shape)


CASES = [
    Case("small", "10 × (16, 16), SGD", 10, (16, 16), "sgd"),
    Case("4mb", "4 × (512, 512), SGD", 4, (512, 512), "sgd"),
    Case("64mb", "4 × (4096, 1024), SGD", 4, (4096, 1024), "sgd"),
    Case("64mb-adam", "4 × (4096, 1024), Adam", 4, (4096, 1024), "adam"),
    Case("many", "10000 × (64,), SGD", 10000, (64,), "sgd"),
    Case("one", "1 × (10000, 64), SGD", 1, (10000, 64), "sgd"),
]


@dataclass(frozen=True)
class SparseCase:
    """Rows of one float32 table on two ps: looked up, and their gradients pushed, with Adagrad.

    Every step has ids of its own, uniform over the table: the same ones again would be in a cache.
    """

    id: str
    title: str
    rows: int
    width: int
    ids: int
    ps: int = 2

    def bytes_of(self, part: str) -> int:
        """Bytes of the rows that the program gets and gives."""
        return 4 * self.ids * self.width * (2 if part == self.id else 1)


SPARSE = SparseCase("sparse", "106,496 rows of 1 M × 16, Adagrad, 2 ps", 1_000_000, 16, 106_496)
SPARSE_TITLES = {
    "sparse": "lookup, then push of the same rows",
    "sparse-pull": "lookup alone",
    "sparse-push": "push alone",
}


def pick(ids: Sequence[str]) -> list[Case]:
    """The dense cases with these ids in the order of ``CASES``; all for none.

    Raises:
        ValueError: An id that no case has.
    """
    known = {case.id for case in CASES} | {SPARSE.id}
    if unknown := set(ids) - known:
        raise ValueError(f"no case {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [case for case in CASES if not ids or case.id in ids]


def wants_sparse(ids: Sequence[str]) -> bool:
    """Whether the sparse case is among these ids; no ids stand for all."""
    return not ids or SPARSE.id in ids


@dataclass(frozen=True)
class RingCase:
    """An all-reduce of ``elements`` float32 between two processes of this machine."""

    id: str
    title: str
    elements: int


RING_CASES = [
    RingCase("ring-10kb", "all-reduce, 10 KB", 2_560),
    RingCase("ring-4mb", "all-reduce, 4 MB", 1024 * 1024),
    RingCase("ring-64mb", "all-reduce, 64 MB", 16 * 1024 * 1024),
]
INPUT_STEP_MS = 5.0
SYNC_TITLES = {
    **{case.id: case.title for case in RING_CASES},
    "empty-run": "strategy.run, empty, 2 replicas",
    "step-without-input": f"step of {INPUT_STEP_MS:g} ms, batch at hand",
    "step-with-input": f"step of {INPUT_STEP_MS:g} ms, batch split and fetched",
}
