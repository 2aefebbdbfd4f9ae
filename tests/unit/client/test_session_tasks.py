"""Sessions of several tasks: what one created and another finds, and the count of all steps."""

import threading
import time

import numpy as np
import pytest

from helpers.sessions import Cluster, create, floats, variable
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.errors import (
    DefinitionMismatchError,
    JobStoppedError,
    JoinTimeoutError,
)
from ropewalk.core.rules.definitions import ShardDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.wire.steps import Operation

ASSIGN, ADD = Operation.ASSIGN, Operation.ASSIGN_ADD


# -- several tasks -----------------------------------------------------------------------------


def test_a_worker_finds_what_the_chief_created_wherever_it_is() -> None:
    cluster = Cluster(3)
    chief, worker = cluster.session(0), cluster.session(1)
    values = create(chief, variable("table", 7, 2), variable("b", 2), parts=3)
    worker.define([variable("b", 2), variable("table", 7, 2)], {}, create=False)
    for name, expected in values.items():
        np.testing.assert_array_equal(worker.step(Step(reads=[name])).values[name], expected)
    theirs, mine = chief.variables.placement(), worker.variables.placement()
    assert {ps: set(rows) for ps, rows in mine.items()} == {
        ps: set(rows) for ps, rows in theirs.items()
    }


def test_a_worker_waits_for_a_late_chief() -> None:
    cluster = Cluster(2)
    settings = Settings(join_timeout_s=5.0)
    chief, worker = cluster.session(0), cluster.session(1, settings=settings)
    looked = threading.Event()
    found: list[float] = []

    def define() -> None:
        worker.define([variable("w", 2)], {}, create=False, still_wanted=looked.set)
        found.append(float(worker.step(Step(reads=["w"])).values["w"][0]))

    thread = threading.Thread(target=define)
    thread.start()
    assert looked.wait(3)
    chief.define([variable("w", 2)], {"w": floats(5, 5)}, create=True)
    thread.join(5)
    assert found == [5.0]


def test_a_worker_does_not_take_values_that_are_not_there_yet() -> None:
    """Created, but not assigned: the chief is between the two."""
    cluster = Cluster()
    half = cluster.session(0).peers[0]
    half.define([ShardDefinition(variable("w", 2))], create=True)
    with pytest.raises(JoinTimeoutError, match="'w'"):
        cluster.session(1).define([variable("w", 2)], {}, create=False)


def test_waiting_for_the_chief_ends_at_the_join_timeout_naming_the_variable() -> None:
    session = Cluster().session(1)
    began = time.monotonic()
    with pytest.raises(JoinTimeoutError) as caught:
        session.define([variable("w", 2), variable("b", 2)], {}, create=False)
    assert caught.value.message == (
        "/job:worker/task:1 waited 0.3 s (join_timeout_s) for the chief to create 'w' and 1 "
        "more; do all "
        "tasks run the same program?"
    )
    assert caught.value.fields["variable"] == "w"
    assert 0.25 < time.monotonic() - began < 2


def test_waiting_for_the_chief_ends_when_the_job_does() -> None:
    def stopped() -> None:
        raise JobStoppedError("stopping")

    with pytest.raises(JobStoppedError):
        Cluster().session(1).define([variable("w", 2)], {}, create=False, still_wanted=stopped)


def test_waiting_for_the_chief_ends_when_its_program_has_ended_without_the_variable() -> None:
    cluster = Cluster()
    create(cluster.session(0), variable("w", 2))
    worker = cluster.session(1, settings=Settings(join_timeout_s=30))
    worker.define([variable("w", 2)], {}, create=False, chief_has_ended=lambda: True)
    wanted = [variable("w", 2), variable("v", 2)]
    with pytest.raises(DefinitionMismatchError, match="worker/task:1 creates 'v', and the chief"):
        worker.define(wanted, {}, create=False, chief_has_ended=lambda: True)


def test_what_a_chief_creates_last_is_found_though_it_has_ended() -> None:
    cluster = Cluster()
    chief, worker = cluster.session(0), cluster.session(1, settings=Settings(join_timeout_s=30))

    def creates_and_ends() -> bool:
        create(chief, variable("w", 2))
        return True

    worker.define([variable("w", 2)], {}, create=False, chief_has_ended=creates_and_ends)
    assert worker.variables.definition("w").shape == (2,)


def test_a_chief_that_restarts_finds_its_variables_and_their_values() -> None:
    cluster = Cluster(2)
    first = cluster.session(0, generation=1)
    create(first, variable("w", 2))
    first.step(Step([Write(ASSIGN, {"w": floats(7, 7)})], increment=3))
    second = cluster.session(0, generation=2)
    second.define([variable("w", 2)], {"w": floats(0, 0)}, create=True)
    assert second.step(Step(reads=["w"])).values["w"][0] == 7
    assert second.global_step == 3


def test_a_chief_that_restarts_assigns_what_its_last_generation_had_only_created() -> None:
    """It died between the two; nobody else would ever do it."""
    cluster = Cluster(2)
    died = cluster.session(0, generation=1)
    died.peers[0].define([ShardDefinition(variable("w", 2))], create=True)
    second = cluster.session(0, generation=2)
    second.define(
        [variable("w", 2), variable("b", 1)], {"w": floats(1, 2), "b": floats(3)}, create=True
    )
    got = second.step(Step(reads=["w", "b"])).values
    np.testing.assert_array_equal(got["w"], [1, 2])
    assert got["b"] == 3


# -- the global step ---------------------------------------------------------------------------


def test_the_first_ps_owns_the_global_step_and_hears_of_every_step() -> None:
    cluster = Cluster(3)
    session, other = cluster.session(0), cluster.session(1)
    create(session, variable("a", 100), variable("b", 2), variable("c", 2))
    other.define([variable("b", 2)], {}, create=False)
    item = [Write(ADD, {"b": floats(1, 1)})]
    assert session.variables.shards("b")[0][0] == 1
    assert session.step(Step(item, increment=1)).global_step == 1
    assert other.step(Step(item, increment=1)).global_step == 2
    result = session.step(Step(item, increment=1, seen_step=1))
    assert (result.global_step, result.staleness) == (3, 1)
    assert cluster.stores[0].global_step == 3
    assert other.global_step == 2, "as far as it has heard"
