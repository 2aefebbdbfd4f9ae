"""The history of a job: bounded whatever happens, exact in its sums, and kept over restarts."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.clock import ManualClock
from ropewalk.annexes.dashboard.history_file import (
    HISTORY_FILE,
    history_bytes,
    history_of,
    read_history,
)
from ropewalk.annexes.dashboard.keeping import History, HistoryKeeper, write_every_s
from ropewalk.annexes.dashboard.samples import CAPACITY, LEVELS, MOST_SERIES, Samples
from ropewalk.cluster.job.job import Job
from ropewalk.core.checkpoint.folder import LocalFolder, open_folder
from ropewalk.core.process import events
from ropewalk.core.process.events import Event
from ropewalk.core.report import TaskReport
from ropewalk.core.task import TaskId

CHIEF, WORKER = TaskId("chief", 0), TaskId("worker", 0)
NUMBERS = st.floats(-1e6, 1e6)


def total(samples: Samples, name: str) -> float:
    """The integral of a number over all of its time."""
    place = samples.names.index(name)
    numbers = ((each.seconds, each.numbers()) for each in samples.since())
    return sum(s * n[place] for s, n in numbers if place < len(n) and n[place] is not None)  # type: ignore[operator,misc]


@given(st.lists(st.tuples(st.floats(0.5, 60), NUMBERS), min_size=1, max_size=200))
def test_means_keep_the_sum_over_time_and_the_order(steps: list[tuple[float, float]]) -> None:
    samples, at = Samples(capacity=3), 0.0
    for seconds, number in steps:
        at += seconds
        samples.add(at, seconds, {"x": number})
    kept = list(samples.since())
    assert [each.at for each in kept] == sorted({each.at for each in kept})
    assert kept[-1].at == at
    assert sum(each.seconds for each in kept) == pytest.approx(at)
    exact = sum(seconds * number for seconds, number in steps)
    # Each sum of a level is rounded once more: far below a millionth of the sizes added.
    assert total(samples, "x") == pytest.approx(exact, abs=1e-9 * sum(s * abs(n) for s, n in steps))


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=100))
def test_a_number_that_is_missing_counts_for_nothing(names: list[str]) -> None:
    samples = Samples(capacity=3)
    for at, name in enumerate(names, 1):
        samples.add(at, 1.0, {name: 7.0})
    for each in samples.since():
        assert {number for number in each.numbers() if number is not None} == {7.0}


def test_what_is_kept_is_bounded_for_ever() -> None:
    samples = Samples(levels=4, capacity=8)
    for at in range(1, 5000):
        samples.add(at, 1.0, {"x": float(at)})
        assert len(samples) <= 4 * 8
    # The newest are as they came, the oldest that are left are of eight.
    assert [each.seconds for each in samples.since()][-5:] == [1.0] * 5
    assert next(samples.since()).seconds == 8.0


def test_only_so_many_names_have_numbers() -> None:
    samples = Samples()
    sample = samples.add(1.0, 1.0, {f"metrics/{n}": 1.0 for n in range(2 * MOST_SERIES)})
    assert len(samples.names) == len(sample.values) == MOST_SERIES


def test_a_nan_is_seen_however_coarse_its_sample_is() -> None:
    samples = Samples()
    for at in range(1, 4 * CAPACITY):
        samples.add(at, 1.0, {"loss": math.nan if at == 1 else 1.0})
    assert any(math.isnan(number) for number in next(samples.since()).values)


def test_a_file_has_what_the_history_has(tmp_path: Path) -> None:
    samples = Samples()
    for at in range(1, 300):
        samples.add(1e9 + at, 1.0, {"a": at / 3, "loss": math.nan} if at % 2 else {"b": 1.0})
    folder = open_folder(str(tmp_path))
    what = [Event(1e9, "task.joined", {"of": "worker:0", "generation": 3})]
    folder.put(HISTORY_FILE, history_bytes(samples, what))
    again, happened = read_history(folder)
    assert happened == [Event(1e9, "task.joined", {"of": "worker:0", "generation": 3})]
    assert again.names == samples.names
    assert [each.seconds for each in again.since()] == [each.seconds for each in samples.since()]
    assert total(again, "b") == pytest.approx(total(samples, "b"))
    assert [each.at for each in again.since()][-50:] == [each.at for each in samples.since()][-50:]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"names": 3}', '{"names": ["a"], "samples": [[1]]}', '{"names": [], "samples": [["x", 1]]}', "[" * 200],
    ids=["empty", "list", "nothing", "names", "short", "text", "deep"],
)  # fmt: skip
def test_a_damaged_file_is_left_aside(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        history_of(text.encode())
    (tmp_path / HISTORY_FILE).write_text(text)
    samples, happened = read_history(open_folder(str(tmp_path)))
    assert (len(samples), happened) == (0, [])


@pytest.fixture(autouse=True)
def no_events_of_other_tests() -> None:
    """Empty the ring of this process, which a history takes its events from."""
    events._ring.clear()


class Trained:
    """A job on a simulated clock whose keeper looks as often as the chief's loop does."""

    def __init__(self, folder: LocalFolder | None = None) -> None:
        self.clock = ManualClock()
        self.job = Job([(CHIEF, ""), (WORKER, "")], chief=CHIEF, lease_s=1e9, now=0)
        self.who = self.job.register(WORKER, now=0)
        self.history = History()
        self.keeper = HistoryKeeper(self.history, folder, 0.0, wall=lambda: 1e9 + self.clock.now())
        self.steps = 0

    def run(self, seconds: float, every_s: float = 0.5) -> None:
        for _ in range(int(seconds / every_s)):
            self.clock.advance(every_s)
            self.steps += 5
            report = TaskReport(steps=self.steps, global_step=self.steps, metrics={"loss": 1.0})
            self.job.heartbeat(self.who, report, now=self.clock.now())
            self.keeper.look(self.job, self.clock.now(), is_last=False)
            self.keeper.act()


def test_a_sample_is_taken_once_a_second() -> None:
    job = Trained()
    job.run(10)
    names, samples = job.history.since(0)
    assert [each.at for each in samples] == [1e9 + second for second in range(1, 11)]
    rates = [each.numbers()[names.index("job/steps_per_second")] for each in samples]
    assert rates == [10.0] * 10
    assert [each.at for each in job.history.since(1e9 + 8)[1]] == [1e9 + 9, 1e9 + 10]


def test_a_day_on_a_simulated_clock_takes_bounded_memory_and_a_small_file() -> None:
    job = Trained()
    job.run(3600, every_s=1)
    hour = len(job.history.since(0)[1])
    job.run(23 * 3600, every_s=1)
    _, samples = job.history.since(0)
    assert hour < len(samples) <= hour + 5 * CAPACITY  # each doubling of the time: one level
    assert len(samples) <= LEVELS * CAPACITY
    assert sum(each.seconds for each in samples) == 24 * 3600
    assert len(job.history.as_file()) < 100_000


def test_a_file_of_a_day_is_written_every_two_minutes() -> None:
    assert [write_every_s(age) for age in (0, 3600, 7200, 86_400)] == [10, 10, 20, 120]


def test_a_chief_that_is_started_again_goes_on_with_the_history(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "model"))
    assert isinstance(folder, LocalFolder)
    for _ in range(2):
        job = Trained(folder)
        events.record("task.joined", of="worker:0")
        job.keeper.start()
        job.run(30)
        job.keeper.look(job.job, job.clock.now() + 1, is_last=True)
        job.keeper.act()
        job.keeper.close()
    samples, happened = read_history(folder)
    assert len(samples) == 62
    assert "task.joined" in {each.name for each in happened}
    assert len({each.at for each in happened}) == len(happened)  # none twice


def test_a_disk_that_refuses_the_file_concerns_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").write_text("a file in the way")
    job = Trained(LocalFolder("model", str(tmp_path / "model")))
    job.keeper.start()
    job.run(5)
    job.keeper.close()
    assert "history.json was not written" in caplog.text
