"""Rows: a promise, who can look whether it holds, and the verdict."""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

STAND_IN = "GPU_CHECK_STAND_IN"
"""Variable of a row's process: how many GPUs the stand-in plays."""


class Skip(Exception):  # noqa: N818 - it is no error
    """A row cannot look here, for a reason that it found itself."""


class Measured(NamedTuple):
    """Result of a row that measures.

    Attributes:
        ratio: Number to compare with the least that is wanted.
        text: Figures behind it, for people.
    """

    ratio: float
    text: str


class Verdict(StrEnum):
    """Outcome of a row."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Row:
    """A promise and the function that looks.

    Attributes:
        name: ``section.function``.
        promise: A sentence, the first of the function's docstring.
        page: The page or the place in the source that makes the promise.
        wanted: Finding that is wanted, for people.
        look: Looks, and returns what it found; raises if the promise does not hold.
        needs: Modules that it imports.
        gpus: Number of GPUs that it takes.
        only_one: Whether it sees one GPU only, as a task of a job does; beside the stand-in none,
            since frameworks compute on the CPU there.
        on_card: Whether the stand-in can say nothing.
        least: The least ratio that is wanted, of a row that measures.
        limit_s: A row that takes longer has failed. Unit: seconds.
    """

    name: str
    promise: str
    page: str
    wanted: str
    look: Callable[[], str | Measured]
    needs: tuple[str, ...] = ()
    gpus: int = 1
    only_one: bool = False
    on_card: bool = False
    least: float | None = None
    limit_s: float = 60.0

    @property
    def section(self) -> str:
        """The section it is in."""
        return self.name.partition(".")[0]

    @property
    def runs_alone(self) -> bool:
        """Whether other rows beside it would change what it finds."""
        return self.least is not None


@dataclass(frozen=True, slots=True)
class Machine:
    """Means that rows have here.

    Attributes:
        gpus: Names of the GPUs that may be used, as ``CUDA_VISIBLE_DEVICES`` has them.
        modules: Modules that can be imported.
        is_played: Whether the GPUs are the stand-in's.
    """

    gpus: tuple[str, ...]
    modules: frozenset[str]
    is_played: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A line of the table.

    Attributes:
        row: Name of the row.
        promise: Promise of the row.
        page: Page of the row.
        got: Finding, or why there is none.
        wanted: Finding that was wanted.
        verdict: Outcome.
        seconds: Time that it took.
    """

    row: str
    promise: str
    page: str
    got: str
    wanted: str
    verdict: Verdict
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Make an object of JSON."""
        return asdict(self)


_rows: dict[str, Row] = {}


def row(
    page: str,
    wanted: str = "",
    *,
    needs: Sequence[str] = (),
    gpus: int = 1,
    only_one: bool = False,
    on_card: bool = False,
    least: float | None = None,
    limit_s: float = 60.0,
) -> Callable[[Callable[[], str | Measured]], Callable[[], str | Measured]]:
    """Make a row of a function; see :class:`Row`."""

    def added(look: Callable[[], str | Measured]) -> Callable[[], str | Measured]:
        assert look.__doc__, f"{look.__name__}: the docstring is the promise"
        name = f"{look.__module__.rpartition('.')[2]}.{look.__name__}"
        promise = look.__doc__.partition("\n\n")[0].replace("\n    ", " ")
        said = wanted or f"≥ {least:.0%}"
        _rows[name] = Row(
            name, promise, page, said, look, tuple(needs), gpus, only_one, on_card, least, limit_s
        )
        return look

    return added


def all_rows() -> list[Row]:
    """List the rows of all sections, in their order."""
    from . import sections  # its modules add them

    of_section = {each: i for i, each in enumerate(sections.__all__)}
    return sorted(_rows.values(), key=lambda each: of_section[each.section])


def chosen(rows: Iterable[Row], names: Collection[str]) -> list[Row]:
    """Choose rows by names of sections and rows; no names: all.

    Raises:
        ValueError: There is no such row or section.
    """
    found = list(rows)
    known = {name for each in found for name in (each.name, each.section)}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"there is no row or section {', '.join(unknown)}; --list shows what there is"
        )
    return [each for each in found if not names or {each.name, each.section} & set(names)]


def why_skipped(row: Row, machine: Machine) -> str:
    """Say why a row cannot look on a machine; empty: it can."""
    if missing := [name for name in row.needs if name not in machine.modules]:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    if (count := len(machine.gpus)) < row.gpus:
        return f"needs {row.gpus} GPU{'s' * (row.gpus > 1)}, there {_are(count)}"
    if row.on_card and machine.is_played:
        return "the stand-in knows nothing of it"
    return ""


def _are(count: int) -> str:
    return {0: "is none", 1: "is 1"}.get(count, f"are {count}")


def variables_of(row: Row, machine: Machine) -> dict[str, str]:
    """Set the variables by which a row's process sees its GPUs."""
    if machine.is_played:
        count = 0 if row.only_one else len(machine.gpus)
        return {STAND_IN: str(len(machine.gpus)), "FAKE_GPUS": str(count)}
    return {"CUDA_VISIBLE_DEVICES": ",".join(machine.gpus[:1] if row.only_one else machine.gpus)}


def judged(row: Row, found: str | Measured) -> tuple[Verdict, str]:
    """Judge what a row found, and word it for the table."""
    if isinstance(found, str):
        return Verdict.PASS, found
    assert row.least is not None, f"{row.name} measures, and nothing is wanted"
    holds = found.ratio >= row.least or bool(os.environ.get(STAND_IN))
    return Verdict.PASS if holds else Verdict.FAIL, f"{found.ratio:.0%}: {found.text}"


def result_of(row: Row, verdict: Verdict, got: str, seconds: float = 0.0) -> Result:
    """Make a line of the table about a row."""
    return Result(row.name, row.promise, row.page, got, row.wanted, verdict, seconds)


def exit_code(results: Iterable[Result]) -> int:
    """Choose the exit code.

    0: what ran has passed; 1: something failed; 2: nothing ran, so nothing is known.
    """
    verdicts = {each.verdict for each in results}
    if Verdict.FAIL in verdicts:
        return 1
    return 0 if Verdict.PASS in verdicts else 2
