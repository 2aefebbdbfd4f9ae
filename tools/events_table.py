"""Write the table of events into docs/events.md, or check with ``--check`` that it is current."""

from page_table import PageTable

from ropewalk.core.process.events import CATALOGUE


def table() -> str:
    """The table in Markdown."""
    rows = (f"| `{name}` | {meaning} |" for name, meaning in CATALOGUE.items())
    return "\n".join(["| event | what has happened |", "|---|---|", *rows])


PAGE = PageTable(
    "events.md",
    "<!-- table of events: core/process/events.py -->",
    table,
    "tools/events_table.py",
)


if __name__ == "__main__":
    PAGE.main()
