"""Write the table of metrics into docs/metrics.md, or check with ``--check`` that it is current."""

import sys
from itertools import groupby
from pathlib import Path

from windlass.core.metric_catalogue import CATALOGUE

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
_BEGIN, _END = "<!-- table of metrics: core/metric_catalogue.py -->", "<!-- end of the table -->"


def table() -> str:
    """The table in Markdown, a part for each kind of task."""
    lines = ["| metric | what it is |", "|---|---|"]
    for shown_by, metrics in groupby(CATALOGUE.values(), lambda metric: metric.shown_by):
        lines.append(f"| **{shown_by}** | |")
        for metric in metrics:
            labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
            lines.append(f"| `{metric.name}{labels}` | {metric.help} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The page with the current table."""
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    return f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{after}"


def main() -> None:
    """Entry point."""
    text = PAGE.read_text()
    if "--check" in sys.argv:
        if with_table(text) != text:
            sys.exit(f"{PAGE} is not current; run python tools/metrics_table.py")
        return
    PAGE.write_text(with_table(text))


if __name__ == "__main__":
    main()
