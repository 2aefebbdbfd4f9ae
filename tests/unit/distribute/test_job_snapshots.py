"""Synchronous programs and the job that saves them: what is a step, when all agree to copy the
variables, and that training goes on from a copy as if it had never stopped.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.waiting import wait_until
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.checkpoint import latest_checkpoint
from ropewalk.core.errors import (
    CheckpointError,
    IncompatibleError,
    JobStoppedError,
    PeerLostError,
    RopewalkError,
    ShapeMismatchError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.distribute import MirroredStrategy
from ropewalk.distribute.job_snapshots import JobSnapshots, Snapshot
from ropewalk.distribute.program_cluster import in_cluster
from ropewalk.distribute.runtime import ClusterRuntime
from ropewalk.distribute.strategies.synchronous_steps import OneWorker, SynchronousSteps
from ropewalk.worker.lead.checkpoint_sources import ProgramVariables, PsShards, source_of
from ropewalk.worker.lead.checkpointer import Checkpointer

Array = np.ndarray[Any, np.dtype[Any]]
MEMBERS = tuple(TaskId("worker", i) for i in range(3))
ASKED = JobStoppedError("asked to stop")


@pytest.fixture(autouse=True)
def two_devices(plain_process: None) -> None:
    rw.config.set_logical_cpu_devices(2)


class Others:
    """The workers as one of them sees them; ``says`` is what the others put into a look."""

    def __init__(self, rank: int = 0, says: tuple[int, ...] = (0, 0, 0, 0, 0)) -> None:
        self.rank = rank
        self.members = MEMBERS
        self.says = says
        self.looks = 0
        self.barriers = 0

    def all_reduce(self, values: Array) -> Array:
        self.looks += 1
        total: Array = values.copy()
        total[: len(self.says)] += self.says
        return total

    def barrier(self, *, timeout_s: float | None = None) -> None:
        assert timeout_s == 0, "a worker may do something long after its last step"
        self.barriers += 1


class Program:
    """A small program under MirroredStrategy, saved by a job."""

    def __init__(self, job: JobSnapshots, restore_from: str = "", shape: int = 3) -> None:
        self.strategy = MirroredStrategy()
        self.steps: SynchronousSteps = self.strategy.extended.steps  # type: ignore[attr-defined]
        self.steps.join(job, OneWorker(MEMBERS[0]), restore_from)
        with self.strategy.scope():
            self.w = rw.Variable(np.arange(shape, dtype=np.float32), name="w")
            self.seen = rw.Variable(
                np.int64(0),
                name="seen",
                synchronization=rw.VariableSynchronization.ON_READ,
                aggregation=rw.VariableAggregation.SUM,
            )
            self.optimizer = rw.optimizers.Adam(0.1)

    def train(self, until: int) -> None:
        def step() -> None:
            self.optimizer.apply_gradients([(self.w.read_value() - 5, self.w)])
            self.seen.assign_add(1)

        while self.strategy.global_step < until:
            self.strategy.run(step)

    @property
    def values(self) -> tuple[list[float], int]:
        return self.w.numpy().tolist(), int(self.seen.numpy())


def save(job: JobSnapshots, directory: Path) -> str:
    """What the job saves of a program that has ended."""
    job.end(together=True)
    return Checkpointer(str(directory), lambda: ProgramVariables(job), keep=5).save(0, final=True)


# -- steps -----------------------------------------------------------------------------------


def test_a_step_counts_if_it_changes_what_the_replicas_share() -> None:
    program = Program(JobSnapshots())
    strategy, w, seen = program.strategy, program.w, program.seen
    with strategy.scope():
        ticks = rw.Variable(0, name="ticks", aggregation=rw.VariableAggregation.SUM)
    ones = np.ones(3, np.float32)

    def both() -> None:
        ticks.assign_add(1)
        program.optimizer.apply_gradients([(ones, w)])

    def parts() -> None:
        with strategy.extended.as_one_step():
            strategy.run(both)
            program.optimizer.apply_gradients([(ones, w)])

    rows: list[tuple[str, Callable[[], Any], int]] = [
        ("only reads", lambda: strategy.run(w.read_value), 0),
        ("an ON_READ metric", lambda: strategy.run(lambda: seen.assign_add(1)), 0),
        ("gradients", lambda: strategy.run(
            lambda: program.optimizer.apply_gradients([(ones, w)])), 1),
        ("assign", lambda: strategy.run(lambda: ticks.assign_add(1)), 1),
        ("two of them", lambda: strategy.run(both), 1),
        ("update", lambda: strategy.run(lambda: strategy.extended.update(
            w, lambda copy, value: copy.assign(value), (ones,))), 1),
        ("assign between steps", lambda: w.assign(ones), 0),
        ("gradients outside of run", lambda: program.optimizer.apply_gradients([(ones, w)]), 1),
        ("parts of one step", parts, 1),
    ]  # fmt: skip
    for what, act, counts in rows:
        before = strategy.global_step
        act()
        assert strategy.global_step == before + counts, what


def looks_of(workers: Others, step_s: list[float]) -> list[int]:
    """Steps after which there was a look."""
    now = [0.0]
    steps = SynchronousSteps(clock=lambda: now[0])
    steps.join(JobSnapshots(), workers, "")
    found = []
    for number, duration in enumerate(step_s, 1):
        steps.begin()
        steps.note_write()
        now[0] += duration
        before = workers.looks
        steps.end()
        if workers.looks > before:
            found.append(number)
    return found


def test_all_look_after_the_first_step_then_twice_a_second_and_at_most_200_steps_apart() -> None:
    assert looks_of(Others(), [0.1] * 20) == [1, 3, 7, 12, 17]
    assert looks_of(Others(), [2.0] * 5) == [1, 2, 3, 4, 5]
    looks = looks_of(Others(), [1e-4] * 2000)
    assert looks[:4] == [1, 3, 7, 15]
    assert max(np.diff(looks)) == 200
    assert len(looks) < 20


def test_the_first_worker_says_when_the_next_look_is() -> None:
    assert looks_of(Others(rank=1, says=(0, 7, 0, 0, 0)), [1.0] * 20) == [1, 8, 15]


@pytest.mark.parametrize("has_job", [True, False], ids=["of a job", "of no job"])
def test_workers_that_do_not_change_the_same_between_steps_end_with_their_names(
    has_job: bool,
) -> None:
    def make_step(*, mine: int, others: tuple[int, int]) -> None:
        workers, steps = Others(says=(0, 0, 0, 0, 0, 0, *others)), SynchronousSteps()
        if has_job:
            steps.join(JobSnapshots(), workers, "")
        else:
            steps.join_workers(workers)
        for _ in range(mine):
            steps.note_write(by_hand=True)
        steps.begin()
        steps.note_write()
        steps.end()

    make_step(mine=2, others=(2, 2))
    words = "/job:worker/task:0 2, /job:worker/task:1 0, /job:worker/task:2 0.*every worker"
    with pytest.raises(IncompatibleError, match=words):
        make_step(mine=2, others=(0, 0))


# -- requests to stop ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "stops", "own", "error", "words"),
    [
        pytest.param(0, (0, 0, 0), ASKED, JobStoppedError, "asked to stop", id="this one"),
        pytest.param(1, (1, 0, 0), None, JobStoppedError, "/job:worker/task:0 was", id="the chief"),
        pytest.param(
            0, (0, 0, 1), None, PeerLostError,
            "/job:worker/task:0 ends after step 1, as /job:worker/task:2 was asked to stop",
            id="another one",
        ),
    ],
)  # fmt: skip
def test_a_request_to_stop_ends_all_after_the_same_step_with_a_copy(
    rank: int,
    stops: tuple[int, ...],
    own: JobStoppedError | None,
    error: type[RopewalkError],
    words: str,
) -> None:
    job = JobSnapshots()
    steps = SynchronousSteps()
    steps.join(job, Others(rank, (0, 1, *stops)), "")
    job.stop = own
    steps.begin()
    steps.note_write()
    with pytest.raises(error, match=words):
        steps.end()
    taken = job.take()
    assert taken is not None
    assert taken.global_step == 1


def test_a_request_to_stop_waits_for_the_end_of_a_step_no_longer_than_the_grace() -> None:
    patient, hasty = JobSnapshots(drain_grace_s=60), JobSnapshots(drain_grace_s=0)
    assert not patient.ask_to_stop(ASKED), "no strategy looks for it"
    for job in (patient, hasty):
        program = Program(job)
        assert not job.ask_to_stop(ASKED), "no step yet: a call to the others may hang"
        program.train(1)
        assert job.ask_to_stop(ASKED)
    patient.check()
    with pytest.raises(JobStoppedError):
        wait_until(hasty.check, 5, "the grace to be over")


# -- copies ----------------------------------------------------------------------------------


def test_the_saving_thread_gets_the_variables_at_the_end_of_a_step() -> None:
    job = JobSnapshots()
    program = Program(job)
    taken: list[Snapshot | None] = []
    thread = threading.Thread(target=lambda: taken.append(job.take()))
    thread.start()
    wait_until(lambda: job.wanted, 5, "the request")
    while not taken:
        program.train(program.strategy.global_step + 1)
        thread.join(0.001)
    snapshot = taken[0]
    assert snapshot is not None
    program.train(snapshot.global_step + 5)
    reference = Program(JobSnapshots())
    reference.train(snapshot.global_step)
    copied = snapshot.variables["w"]
    np.testing.assert_array_equal(copied.value, reference.w.numpy(), "later steps do not show")
    assert copied.updates == snapshot.global_step
    assert set(copied.slots) == {"momentum", "velocity"}
    assert snapshot.variables["seen"].value == 2 * snapshot.global_step


def test_a_saving_thread_that_waits_when_the_program_ends_is_let_go() -> None:
    job = JobSnapshots()
    Program(job).train(2)
    taken: list[Snapshot | None] = []
    thread = threading.Thread(target=lambda: taken.append(job.take()))
    thread.start()
    wait_until(lambda: job.wanted, 5, "the request")
    job.end(together=True)
    thread.join(5)
    assert taken == [None]
    last = job.take()
    assert last is not None
    assert last.global_step == 2


def test_a_program_that_resumes_ends_as_one_that_never_stopped(tmp_path: Path) -> None:
    whole = Program(JobSnapshots())
    whole.train(20)
    job = JobSnapshots()
    Program(job).train(12)
    again = Program(JobSnapshots(), save(job, tmp_path))
    assert again.strategy.global_step == 12
    assert again.values[1] == 24
    again.train(20)
    assert again.values == whole.values, "to the bit: Adam's slots and count came back, too"


def test_a_variable_of_the_first_step_is_restored(tmp_path: Path) -> None:
    job = JobSnapshots()
    Program(job).train(3)
    path = save(job, tmp_path)
    strategy = MirroredStrategy()
    steps: SynchronousSteps = strategy.extended.steps  # type: ignore[attr-defined]
    steps.join(JobSnapshots(), OneWorker(MEMBERS[0]), path)
    made: list[Any] = []

    def step() -> Any:
        if not made:
            made.append(rw.Variable(
                np.int64(0), name="seen", synchronization=rw.VariableSynchronization.ON_READ,
                aggregation=rw.VariableAggregation.SUM,
            ))  # fmt: skip
        return made[0].read_value()

    shares = strategy.experimental_local_results(strategy.run(step))
    assert sum(int(share) for share in shares) == 6


def test_another_shape_and_a_checkpoint_out_of_reach_are_errors_that_say_where(
    tmp_path: Path,
) -> None:
    job = JobSnapshots()
    Program(job).train(1)
    path = save(job, tmp_path)
    with pytest.raises(ShapeMismatchError, match=r"'w' has shape \(3,\) there.*has \(4,\)"):
        Program(JobSnapshots(), path, shape=4)
    with pytest.raises(
        CheckpointError, match=r"/job:worker/task:0 cannot read .*gone.* model_dir that all of them"
    ):
        Program(JobSnapshots(), str(tmp_path / "gone"))


def test_what_a_checkpoint_lacks_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = JobSnapshots()
    Program(job).train(1)
    strategy = MirroredStrategy()
    steps: SynchronousSteps = strategy.extended.steps  # type: ignore[attr-defined]
    steps.join(JobSnapshots(), OneWorker(MEMBERS[0]), save(job, tmp_path))
    with caplog.at_level("INFO"), strategy.scope():
        for name in ("w", "bias"):
            rw.Variable(np.zeros(3, np.float32), name=name)
    assert "restored 1 variable from" in caplog.text
    assert "has no bias: they begin anew" in caplog.text


# -- the end ---------------------------------------------------------------------------------


def joined_to(workers: Others, job: JobSnapshots, *, with_metric: bool) -> SynchronousSteps:
    strategy = MirroredStrategy()
    steps: SynchronousSteps = strategy.extended.steps  # type: ignore[attr-defined]
    steps.join(job, workers, "")
    with strategy.scope():
        rw.Variable(np.zeros(3, np.float32), name="w")
        if with_metric:
            rw.Variable(
                0.0, name="seen", synchronization=rw.VariableSynchronization.ON_READ,
                aggregation=rw.VariableAggregation.SUM,
            )  # fmt: skip
    steps.begin()
    steps.note_write()
    steps.end()
    return steps


@pytest.mark.parametrize(
    ("with_metric", "broken_off", "saved"),
    [
        pytest.param(False, False, True, id="between two steps"),
        pytest.param(False, True, False, id="in the middle of one"),
        pytest.param(True, False, False, id="with a value of all workers"),
    ],
)
def test_of_a_program_that_lost_a_worker_a_whole_step_is_saved_or_nothing(
    with_metric: bool, broken_off: bool, saved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job = JobSnapshots()
    steps = joined_to(Others(says=(0, 1, 0, 0, 0)), job, with_metric=with_metric)
    steps.begin()  # in which the worker is lost
    if broken_off:
        steps.note_write()
    job.end(together=False)
    taken = job.take()
    assert (taken is not None) == saved
    if not saved:
        assert "not saved" in caplog.text


def test_workers_that_are_through_wait_for_each_other_where_values_are_of_all() -> None:
    for with_metric in (True, False):
        job, workers = JobSnapshots(), Others(says=(0, 1, 0, 0, 0))
        joined_to(workers, job, with_metric=with_metric)
        job.end(together=True)
        assert workers.barriers == with_metric
        assert job.take() is not None


def test_the_first_strategy_of_a_program_is_the_jobs(caplog: pytest.LogCaptureFixture) -> None:
    job = JobSnapshots()
    assert not job.offer(), "another task saves"
    job.saves = True
    assert job.offer()
    Program(job)
    assert not job.offer()
    assert "first synchronous strategy alone" in caplog.text


@pytest.mark.parametrize("servers_in_use", [True, False])
def test_a_process_alone_saves_what_is_on_its_servers_or_else_the_programs_copies(
    servers_in_use: bool,
) -> None:
    job = JobSnapshots()

    def take() -> int | None:
        return source_of(PsShards([]), job, in_use=servers_in_use, alone=True).take(7)

    assert take() == 7, "no synchronous strategy"
    Program(job).train(3)
    job.end(together=True)
    assert take() == (7 if servers_in_use else 3)


ONE_PROCESS: list[Any] = [
    pytest.param(rw.distribute.CentralStorageStrategy, id="Central"),
    pytest.param(lambda: rw.distribute.CentralStorageStrategy(["cpu:0"]), id="Central-of-one"),
    pytest.param(lambda: rw.distribute.OneDeviceStrategy("cpu:0"), id="OneDevice"),
    pytest.param(MirroredStrategy, id="Mirrored"),
]


def train_in_job(make: Callable[[], Any], model_dir: Path, until: int) -> tuple[list[float], int]:
    """One job of such a strategy; the variable, and how many steps it had to make."""
    runtime = runtime_that_saves(model_dir)
    with in_cluster(runtime):
        strategy = make()
        assert runtime.snapshots is not None
        with strategy.scope():
            w = rw.Variable(np.arange(3, dtype=np.float32), name="w")
        seen = rw.metrics.Mean("seen")
        optimizer = rw.optimizers.Adam(0.1)
        scale = strategy.num_replicas_in_sync
        made = 0
        while strategy.global_step < until:
            strategy.run(lambda: optimizer.apply_gradients([((w.read_value() - 5) / scale, w)]))
            made += 1
        strategy.run(lambda: seen.update_state(1.0))
        assert strategy.global_step == until, "counting is no step"
        runtime.snapshots.end(together=True)
        source = ProgramVariables(runtime.snapshots)
        Checkpointer(str(model_dir), lambda: source, keep=5).save(until)
        return w.numpy().tolist(), made


def runtime_that_saves(model_dir: Path) -> ClusterRuntime:
    job = JobSnapshots()
    job.saves = True
    newest = latest_checkpoint(str(model_dir))
    job.restore_from = newest.path if newest is not None else ""
    task = ResolvedTask(TaskId("chief", 0), ClusterSpec({}), TaskId("chief", 0))
    return ClusterRuntime(task, Settings(), alone=True, snapshots=job)


@pytest.mark.parametrize("second", ONE_PROCESS)
@pytest.mark.parametrize("first", ONE_PROCESS)
def test_a_job_of_one_strategy_resumes_under_another(
    first: Callable[[], Any], second: Callable[[], Any], tmp_path: Path
) -> None:
    values, made = train_in_job(first, tmp_path / "two", until=3)
    assert made == 3
    values, made = train_in_job(second, tmp_path / "two", until=6)
    assert made == 3
    whole, made = train_in_job(second, tmp_path / "one", until=6)
    assert made == 6
    # Adam's slots, too; two replicas add up in another order.
    np.testing.assert_allclose(values, whole, rtol=1e-6)
