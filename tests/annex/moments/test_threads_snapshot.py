"""``strategy.snapshot()``: all variables at one moment, of a job and of a program alone."""

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.annexes.moments.chief_part import JobCuts


def test_a_snapshot_has_one_moment_of_all_ps_while_others_train_on() -> None:
    def train() -> list[tuple[list[float], dict[str, int], int]]:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            counts = [
                rw.Variable(np.zeros((2, 60_000), np.float32), name=f"count{i}") for i in range(2)
            ]
        one = np.ones((2, 60_000), np.float32)
        found: list[tuple[list[float], dict[str, int], int]] = []
        for number in range(30):
            strategy.run(lambda: [count.assign_add(one) for count in counts])
            if strategy.extended.runtime.task.is_chief and number % 10 == 9:
                taken = strategy.snapshot()
                values = [taken.values[count.name] for count in counts]
                assert not values[0].flags.writeable
                extent = [float(f(v)) for v in values for f in (np.min, np.max)]
                found.append((extent, dict(taken.pushes), taken.global_step))
        return found

    with rw.testing.LocalCluster(workers=2, ps=2) as cluster:
        found = next(each for each in cluster.run(train).values() if each)
    for number, (extent, pushes, global_step) in enumerate(found, 1):
        assert extent == [global_step] * 4
        assert pushes["chief:0"] >= 10 * number  # and one for the first values
        assert global_step >= 10 * number


def test_a_snapshot_of_a_program_alone_is_what_it_has() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable(np.zeros(3, np.float32), name="w")
    strategy.run(lambda: w.assign_add(np.ones(3, np.float32)))
    taken = strategy.snapshot()
    assert isinstance(taken, rw.distribute.PsSnapshot)
    assert taken.values["w"].tolist() == [1, 1, 1]
    assert (taken.global_step, dict(taken.pushes)) == (1, {})


def test_a_snapshot_that_cannot_be_had_says_why() -> None:
    def train() -> str:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            rw.Variable(np.zeros(3, np.float32), name="w")
        if not strategy.extended.runtime.task.is_chief:
            return ""
        job = strategy.extended.runtime.job
        job._leader.locked_job.part(JobCuts).take = _refuse  # type: ignore[attr-defined]
        with pytest.raises(rw.errors.CutVoidError) as raised:
            strategy.snapshot(timeout_s=0.2)
        return str(raised.value)

    with rw.testing.LocalCluster(workers=0, ps=1) as cluster:
        [said] = cluster.run(train).values()
    assert "no snapshot in 0.2 s: a worker stands still" in said


def _refuse(*_: object, **__: object) -> None:
    raise rw.errors.CutVoidError("a worker stands still")
