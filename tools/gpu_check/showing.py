"""The table of what was found, and the lines as they come."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .rows import Result, Row, Verdict

_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.SKIP: "dim"}


def listed(rows: Sequence[Row]) -> Table:
    """All rows, as ``--list`` shows them."""
    table = Table("row", "promise", "page", "needs")
    for each in rows:
        needs = [*each.needs, *([f"{each.gpus} GPUs"] if each.gpus > 1 else [])]
        table.add_row(each.name, each.promise, each.page, ", ".join(needs))
    return table


def table_of(results: Sequence[Result], title: str) -> Table:
    """All results, those that failed last, where people look first."""
    table = Table("row", "promise", "got", "wanted", "", "s", title=title)
    for each in sorted(results, key=lambda result: result.verdict is Verdict.FAIL):
        verdict = Text(each.verdict, _STYLES[each.verdict])
        promise = f"{each.promise} ({each.page})"
        seconds = f"{each.seconds:.0f}" if each.seconds else ""
        # Text: what was found may have brackets.
        table.add_row(each.row, Text(promise), Text(each.got), each.wanted, verdict, seconds)
    return table


def summary(results: Sequence[Result]) -> str:
    """How many rows came to what."""
    counts = Counter(each.verdict for each in results)
    return ", ".join(f"{counts[each]} {each}" for each in Verdict)


def writer(path: Path | None, console: Console, header: object) -> Callable[[Result], None]:
    """What shows each result as it comes, and adds it to a file of JSON lines.

    Args:
        path: The file, which is begun anew; None: there is none.
        console: Where a line about each is shown.
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
