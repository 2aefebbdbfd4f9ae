"""Draw ``docs/images/clicks-by-day.svg``: a run of ``examples/clicks_by_day.py``, day by day.

The upper part has the area under the curve of each day before it was trained, and that of the
probabilities that the clicks were drawn with. The lower part has the rows of the two tables, their
memory on the ps, and how many rows were made and evicted until then.

    python tools/clicks_picture.py --days 40

Needs matplotlib. Runs the example's program in this process, about a second a day.
"""

import argparse
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_BLUE, _RED, _GREEN, _GREY = "#4c78a8", "#e45756", "#54a24b", "#888888"


@dataclass(frozen=True, slots=True)
class Day:
    """What one day has shown, all tables together.

    Attributes:
        best: AUC of the probabilities that the clicks were drawn with.
        auc: AUC of what was predicted before the day was trained.
        rows: Rows of the tables after it.
        num_bytes: Memory of rows, slots and index after it.
        admitted: Rows made until then.
        evicted: Rows evicted until then.
    """

    best: float
    auc: float
    rows: int
    num_bytes: int
    admitted: int
    evicted: int


def days_of(count: int, seed: int) -> list[Day]:
    """Run the example alone."""
    import ropewalk as rw

    example = runpy.run_path(str(ROOT / "examples" / "clicks_by_day.py"))
    strategy = rw.distribute.ParameterServerStrategy()
    embeddings = example["make_embeddings"](strategy, 0)
    days = []
    for day in range(count):
        best, auc = example["predict_and_train"](strategy, embeddings, day, seed)
        tables = strategy.extended.runtime.session.peers[0].store.counters().tables
        days.append(
            Day(
                best, auc, sum(each.rows for each in tables),
                sum(each.num_bytes for each in tables),
                sum(each.admitted for each in tables), sum(each.evicted for each in tables),
            )
        )  # fmt: skip
    return days


def draw(days: list[Day], target: Path) -> None:
    """One picture of two parts."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "ropewalk", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(6, 4.6), sharex=True)
    at = range(len(days))
    above.plot(at, [day.best for day in days], color=_GREY, label="best there can be")
    above.plot(at, [day.auc for day in days], color=_BLUE, label="of a day not yet trained")
    above.set(ylabel="AUC", ylim=(0.5, 0.9))
    below.plot(at, [day.admitted for day in days], color=_GREEN, label="rows made until then")
    below.plot(at, [day.evicted for day in days], color=_RED, label="rows evicted until then")
    below.plot(at, [day.rows for day in days], color=_BLUE, label="rows of the tables")
    below.set(xlabel="day", ylabel="rows", xlim=(0, len(days) - 1), ylim=(0, None))
    memory = below.twinx()
    kib = [day.num_bytes / 1024 for day in days]
    memory.plot(at, kib, color=_GREY, linestyle=":", label="memory of the tables, KiB")
    memory.set(ylabel="KiB", ylim=(0, 2 * max(kib)))
    _finish(above, [above], "lower right")
    _finish(below, [below, memory], "upper left")
    memory.spines["top"].set_visible(False)
    figure.tight_layout()
    metadata: dict[str, Any] = {"Date": None}
    figure.savefig(target, format="svg", metadata=metadata)


def _finish(axes: Any, shown: list[Any], place: str) -> None:
    """The legend of some curves, and a grid."""
    handles = [line for each in shown for line in each.get_lines()]
    axes.legend(handles, [line.get_label() for line in handles], frameon=False, loc=place)
    axes.grid(color="#dddddd", linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    """Run, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--days", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the visits")
    default = ROOT / "docs" / "images" / "clicks-by-day.svg"
    parser.add_argument("--target", type=Path, default=default)
    arguments = parser.parse_args()
    days = days_of(arguments.days, arguments.seed)
    for number, day in enumerate(days):
        print(number, day)
    draw(days, arguments.target)
    print(f"{arguments.target}: {arguments.target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
