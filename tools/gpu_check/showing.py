"""The table of what was found, and the lines as they come."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from .rows import Result, Row, Verdict

_PIPE_COLUMNS = 160
_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.SKIP: "dim"}


def console() -> Console:
    """Make a console as wide as the terminal; in a pipe or a file wide enough for a table."""
    made = Console()
    return made if made.is_terminal else Console(width=_PIPE_COLUMNS)


def listed(rows: Sequence[Row]) -> Table:
    """Make a table of rows, as ``--list`` shows them."""
    table = Table(Column("row", no_wrap=True), "promise", "page", "needs")
    for each in rows:
        needs = [*each.needs, *([f"{each.gpus} GPUs"] if each.gpus > 1 else [])]
        table.add_row(each.name, each.promise, each.page, ", ".join(needs))
    return table


def table_of(results: Sequence[Result], title: str) -> Table:
    """Make a table of results, those that failed last, where people look first."""
    names = Column("row", no_wrap=True)
    table = Table(names, "promise", "got", "wanted", "", "s", title=title)
    for each in sorted(results, key=lambda result: result.verdict is Verdict.FAIL):
        verdict = Text(each.verdict, _STYLES[each.verdict])
        promise = f"{each.promise} ({each.page})"
        seconds = f"{each.seconds:.0f}" if each.seconds else ""
        # Text: what was found may have brackets.
        table.add_row(each.row, Text(promise), Text(each.got), each.wanted, verdict, seconds)
    return table


def summary(results: Sequence[Result]) -> str:
    """Count the rows that came to each verdict."""
    counts = Counter(each.verdict for each in results)
    return ", ".join(f"{counts[each]} {each}" for each in Verdict)


def writer(path: Path | None, console: Console, header: object) -> Callable[[Result], None]:
    """Make what shows each result as it comes, and adds it to a file of JSON lines.

    Args:
        path: The file, which is begun anew; None: there is none.
        console: Shows a line about each.
        header: First line of the file.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(header) + "\n")

    def tell(result: Result) -> None:
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(result.as_json()) + "\n")
        line = f"{result.verdict}  {result.row}  {result.got}"
        console.print(Text(line, _STYLES[result.verdict]), soft_wrap=True)

    return tell
