"""Who records summaries, and what is said where they cannot be written. What files hold is tested
in ``tests/bridges``, where tensorboardX is installed.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.annexes.tensorboard import encoding, summary
from ropewalk.annexes.tensorboard.job_summaries import open_job_summaries
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError, MissingExtraError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.distribute.program_cluster import in_cluster
from ropewalk.distribute.runtime import ClusterRuntime
from ropewalk.launch.cli import ropewalk

SPEC = ClusterSpec({"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]})


class Recorded(summary.SummaryWriter):
    """Keeps steps and summaries instead of writing them."""

    def __init__(self, *, chief_only: bool = True) -> None:
        super().__init__("logs", chief_only=chief_only, max_queue=1, flush_s=1.0, suffix="")
        self.events: list[Any] = []

    def add(self, events: Any) -> None:
        self.events += events


@pytest.fixture(autouse=True)
def _events_as_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "event_of", lambda step, made: (step, made))
    monkeypatch.setattr(encoding, "scalars", dict)


def of(role: str) -> ClusterRuntime:
    task = ResolvedTask(TaskId(role, 0), SPEC, TaskId("chief", 0))
    runtime = ClusterRuntime(task, Settings())
    runtime.progress.global_step = 7
    return runtime


@pytest.mark.parametrize(
    ("role", "writes"), [("chief", True), ("evaluator", True), ("worker", False)]
)
def test_the_chief_and_the_evaluator_write(role: str, writes: bool) -> None:
    writer = Recorded()
    with in_cluster(of(role)), writer.as_default():
        assert rw.summary.scalar("loss", 0.5) is writes
        assert rw.summary.should_record_summaries() is writes
    assert writer.events == ([(7, {"loss": 0.5})] if writes else [])


def test_another_worker_writes_where_its_writer_says_so() -> None:
    writer = Recorded(chief_only=False)
    with in_cluster(of("worker")), writer.as_default():
        assert rw.summary.scalar("loss", 1)


def test_a_worker_that_does_not_write_does_not_look_at_what_it_is_given() -> None:
    with in_cluster(of("worker")), Recorded().as_default():
        assert not rw.summary.histogram("weights", object())
        assert not rw.summary.image("pictures", object())


def test_without_a_default_writer_nothing_is_recorded() -> None:
    assert not rw.summary.scalar("loss", 1.0, step=1)
    with rw.summary.create_noop_writer().as_default():
        assert not rw.summary.scalar("loss", 1.0, step=1)


def test_of_the_replicas_of_a_worker_the_first_one_records() -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        with strategy.scope():
            count = rw.Variable(0.0, name="n", aggregation=rw.VariableAggregation.MEAN)
        writer = Recorded()

        def step() -> None:
            count.assign_add(1.0)
            context = rw.distribute.get_replica_context()
            assert context is not None
            rw.summary.scalar("count", context.local_id)

        with writer.as_default():
            for _ in range(2):
                strategy.run(step)
        assert writer.events == [(0, {"count": 0.0}), (1, {"count": 0.0})]
    finally:
        rw.config.set_logical_cpu_devices(1)


def test_the_step_is_the_callers_the_defaults_or_the_strategys() -> None:
    strategy = rw.distribute.MirroredStrategy()
    with strategy.scope():
        value = rw.Variable(0.0, name="v")
        at = rw.Variable(3, name="at", trainable=False)
    strategy.run(lambda: value.assign(1.0))
    writer = Recorded()
    with writer.as_default():
        rw.summary.scalar("a", 1, step=9)
        with strategy.scope():
            rw.summary.scalar("b", 1)
    for given in (strategy, at, lambda: 4, 5):
        with writer.as_default(step=given):
            rw.summary.scalar("c", 1)
    assert [step for step, _ in writer.events] == [9, 1, 1, 3, 4, 5]


def test_a_step_that_nobody_knows_is_an_error() -> None:
    with Recorded().as_default(), pytest.raises(ValueError, match="give step=, or as_default"):
        rw.summary.scalar("loss", 1.0)


def is_even(number: int) -> bool:
    return number % 2 == 0


def test_record_if_leaves_summaries_out() -> None:
    writer = Recorded()
    with writer.as_default():
        for step in range(4):
            with rw.summary.record_if(partial(is_even, step)):
                assert rw.summary.should_record_summaries() is (step % 2 == 0)
                rw.summary.scalar("loss", step, step=step)
        with rw.summary.record_if(False):
            rw.summary.scalar("loss", 9, step=9)
    assert [step for step, _ in writer.events] == [0, 2]


def test_what_is_no_single_number_is_no_scalar() -> None:
    with Recorded().as_default(), pytest.raises(ValueError, match=r"shape \(2,\)"):
        rw.summary.scalar("loss", [1.0, 2.0], step=1)


def test_what_is_no_batch_of_pictures_is_no_image() -> None:
    with Recorded().as_default(), pytest.raises(ValueError, match=r"\(28, 28\)"):
        rw.summary.image("digit", [[0.0] * 28] * 28, step=1)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """tensorboardX is not installed."""
    monkeypatch.setattr(encoding, "find_spec", lambda _: None)


@pytest.mark.usefixtures("no_library")
def test_a_missing_library_is_named_with_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'ropewalk\[tensorboard\]'"):
        rw.summary.create_file_writer("logs")


def test_a_job_without_a_model_directory_has_no_place_for_its_numbers() -> None:
    with pytest.raises(ConfigurationError, match="give --model-dir"):
        open_job_summaries("", 0.0)


@pytest.mark.usefixtures("no_library")
def test_a_local_job_that_cannot_write_its_numbers_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    command = ["local", "--tensorboard", str(tmp_path / "train.py")]
    with pytest.raises(MissingExtraError, match=r"ropewalk\[tensorboard\]"):
        ropewalk.main(args=command, prog_name="ropewalk", standalone_mode=False)
