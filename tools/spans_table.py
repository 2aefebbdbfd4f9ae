"""Write the table of spans into docs/traces.md, or check with ``--check`` that it is current."""

from page_table import PageTable

from ropewalk.core.spans import CATALOGUE


def table() -> str:
    """The table in Markdown."""
    rows = (f"| `{name}` | {meaning} |" for name, meaning in CATALOGUE.items())
    return "\n".join(["| span | what is measured |", "|---|---|", *rows])


PAGE = PageTable(
    "traces.md",
    "<!-- table of spans: core/spans.py -->",
    table,
    "tools/spans_table.py",
)


if __name__ == "__main__":
    PAGE.main()
