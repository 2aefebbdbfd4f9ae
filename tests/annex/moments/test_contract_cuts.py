"""Cuts on a ps that other processes reach: whose values they are."""

from collections.abc import Iterator

import numpy as np
import pytest

from helpers.ps_peers import ASSIGN, Ps, put, vector
from ropewalk.annexes.moments.server.cuts import ShareCuts
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.core.errors import PermissionDeniedError
from ropewalk.core.task import Incarnation, TaskId

FIRST = Incarnation(TaskId("worker", 0), 1)


@pytest.fixture
def ps() -> Iterator[Ps]:
    made = Ps("tcp")
    yield made
    made.close()


@pytest.mark.parametrize(
    "other",
    [pytest.param((1, 1), id="another worker"), pytest.param((0, 2), id="its next process")],
)
def test_a_cut_is_read_by_the_task_that_it_was_taken_for_alone(
    ps: Ps, other: tuple[int, int]
) -> None:
    w = vector("w", 300_000)
    reads = ps.worker()
    reads.define(w)
    reads.push(put(w, ASSIGN, np.ones(300_000, np.float32)))
    ps.store.part(ShareCuts).begin(1, set(), 1.0, with_slots=False, reader=FIRST)
    stranger = ps.worker(*other).peer
    assert isinstance(stranger, RemotePs)
    assert isinstance(reads.peer, RemotePs)
    with pytest.raises(PermissionDeniedError, match=f"was taken for {FIRST.task}"):
        stranger.read_cut(1, 0, 5.0)
    [part] = reads.peer.read_cut(1, 0, 5.0)  # nothing of it went to the other one
    np.testing.assert_array_equal(part.values, np.ones(300_000, np.float32))
    assert reads.peer.read_cut(1, 1, 5.0) == []


def test_what_a_checkpoint_writes_is_read_by_no_task(ps: Ps) -> None:
    worker = ps.worker()
    worker.define(vector("w", 3))
    ps.store.part(ShareCuts).begin(1, set(), 1.0, with_slots=True)
    assert isinstance(worker.peer, RemotePs)
    with pytest.raises(PermissionDeniedError, match="was taken for a checkpoint"):
        worker.peer.read_cut(1, 0, 5.0)
    assert ps.store.part(ShareCuts).kept(1, None).moment.number == 1
