"""Write the table of metrics into docs/metrics.md, or check with ``--check`` that it is current."""

from itertools import groupby

from page_table import PageTable

from ropewalk.telemetry.catalogue import CATALOGUE


def table() -> str:
    """The table in Markdown, a part for each kind of task."""
    lines = ["| metric | what it is |", "|---|---|"]
    for shown_by, metrics in groupby(CATALOGUE.values(), lambda metric: metric.shown_by):
        lines.append(f"| **{shown_by}** | |")
        for metric in metrics:
            labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
            lines.append(f"| `{metric.name}{labels}` | {metric.help} |")
    return "\n".join(lines)


PAGE = PageTable(
    "metrics.md",
    "<!-- table of metrics: telemetry/catalogue.py -->",
    table,
    "tools/metrics_table.py",
)


if __name__ == "__main__":
    PAGE.main()
