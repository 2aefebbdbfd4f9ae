"""Plots of the figures that ``benchmarks.step`` and ``benchmarks.compare`` write.

    python -m benchmarks.plots results.json --into plots      # needs the dependency group `bench`

One SVG per series of the file: ``by_bytes``, ``by_variables``, ``by_workers``. Without ``by_bytes``
the cases of the comparison that differ in bytes alone (few SGD variables) take its place. The
machine's limits are the dashed lines: the bytes of a step divided by what the machine moves per
second.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Json = dict[str, Any]
Points = dict[str, list[tuple[float, float]]]

# Okabe and Ito's palette, told apart with every kind of colour vision; the yellow is too light
# here.
COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, FAINT = "#333333", "#D8D8D8"
BY_BYTES_CASES = ("small", "4mb", "64mb")
STYLE = {
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.figsize": (8, 4.5),
    "font.size": 10,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "ropewalk",  # the same figures give the same file
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def points(rows: Iterable[Json], x: str, y: str) -> Points:
    """The rows that have both values as sorted points per system."""
    found: Points = {}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            found.setdefault(row["system"], []).append((row[x], row[y]))
    return {system: sorted(each) for system, each in found.items()}


def by_bytes(document: Json) -> Points:
    """Step time against bytes: the series, and the cases of systems that have none."""
    rows = list(document.get("by_bytes", []))
    known = {row["system"] for row in rows}
    rows += [
        row
        for row in document.get("results", [])
        if row["case"] in BY_BYTES_CASES and row["system"] not in known
    ]
    return points(rows, "bytes_both_ways", "median_ms")


def spread(wanted: list[float], gap: float) -> list[float]:
    """Positions in the order given, ascending, at least ``gap`` apart and near to the wanted ones.

    The centre of each group that had to move stays where it was.
    """
    groups: list[tuple[float, int]] = []  # centre, how many
    for each in wanted:
        groups.append((each, 1))
        while len(groups) > 1:
            (low, n), (high, m) = groups[-2:]
            if high - low >= gap * (n + m) / 2:
                break
            groups[-2:] = [((low * n + high * m) / (n + m), n + m)]
    return [centre + gap * (i - (n - 1) / 2) for centre, n in groups for i in range(n)]


def label_ends(axes: "Axes", ends: list[tuple[str, float, float, str]]) -> None:
    """Name every line at its right end, in its colour; names that would overlap move apart."""
    figure = axes.get_figure(root=True)
    assert figure
    figure.canvas.draw()  # fixes the limits
    edge = axes.transAxes.transform((1, 0))[0]
    placed = sorted((axes.transData.transform((x, y))[1], x, y, name, c) for name, x, y, c in ends)
    heights = spread([each[0] for each in placed], gap=figure.dpi * 12 / 72)
    to_axes = axes.transAxes.inverted()
    for (_, x, y, name, colour), height in zip(placed, heights, strict=True):
        axes.annotate(
            name,
            xy=(x, y),
            xytext=tuple(to_axes.transform((edge + figure.dpi * 0.22, height))),
            textcoords="axes fraction",
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "alpha": 0.6},
        )


def draw(axes: "Axes", lines: Points) -> list[tuple[str, float, float, str]]:
    """Draw one line per system; its end, for the label."""
    ends = []
    for index, (system, each) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        xs, ys = zip(*each, strict=True)
        axes.plot(xs, ys, color=colour, marker=MARKERS[index % len(MARKERS)], ms=4.5, lw=1.6)
        ends.append((system, xs[-1], ys[-1], colour))
    return ends


def human_bytes(value: float, _: object = None) -> str:
    """``4 MB``; decimal, as network and memory speeds are."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size * 0.9995:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


def readable_scale(axis: "Axis") -> None:
    """Ticks of a logarithmic axis: at 1, 2 and 5 where it is short, else at powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    short = math.log10(high / low) < 2.5
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if short else (1,), numticks=20))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(plain)


def plain(value: float, _: object = None) -> str:
    """A tick without exponents."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def plot_bytes(axes: "Axes", document: Json) -> bool:
    """Time of a step against its bytes, log-log, with the machine's limits."""
    lines = by_bytes(document)
    if not lines:
        return False
    axes.set(xscale="log", yscale="log", title="Time of one step: pull and push of every variable")
    axes.set(xlabel="bytes of a step, both ways", ylabel="median, ms")
    ends = draw(axes, lines)
    every = [point for each in lines.values() for point in each]
    low, high = min(x for x, _ in every), max(x for x, _ in every)
    floor = min(y for _, y in every) / 2
    for name, gb_per_s in (document.get("limits") or {}).items():
        per_ms = gb_per_s * 1e6
        first = max(low, min(floor * per_ms, high))  # not below the measured times
        axes.plot(
            [first, high], [first / per_ms, high / per_ms], "--", color="#999999", lw=1, zorder=1
        )
        label = f"{name.removesuffix('_gb_per_s').replace('_', ' ')}, {gb_per_s:.1f} GB/s"
        ends.append((label, high, high / per_ms, "#666666"))
    readable_scale(axes.xaxis)
    axes.xaxis.set_major_formatter(human_bytes)
    readable_scale(axes.yaxis)
    label_ends(axes, ends)
    return True


def plot_variables(axes: "Axes", document: Json) -> bool:
    """Time of a step against the number of variables, the bytes being the same."""
    lines = points(document.get("by_variables", []), "variables", "median_ms")
    if not lines:
        return False
    axes.set(xscale="log", yscale="log", title="Time of one step: the same bytes in more variables")
    axes.set(xlabel="number of variables", ylabel="median, ms")
    ends = draw(axes, lines)
    readable_scale(axes.xaxis)
    readable_scale(axes.yaxis)
    label_ends(axes, ends)
    return True


def plot_workers(axes: "Axes", document: Json) -> bool:
    """Steps per second of all workers together."""
    lines = points(document.get("by_workers", []), "workers", "steps_per_s")
    if not lines:
        return False
    ticks = sorted({x for each in lines.values() for x, _ in each})
    axes.set(title="Steps per second of all workers together")
    axes.set(xlabel="workers", ylabel="steps/s", xticks=ticks)
    ends = draw(axes, lines)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(plain)
    label_ends(axes, ends)
    return True


PLOTS: dict[str, Callable[["Axes", Json], bool]] = {
    "by-bytes": plot_bytes,
    "by-variables": plot_variables,
    "by-workers": plot_workers,
}


def write_plots(document: Json, into: Path, suffix: str = ".svg") -> list[Path]:
    """Write one file per series that the document has; the files."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    into.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(STYLE):
        for name, plot in PLOTS.items():
            figure = Figure()
            FigureCanvasAgg(figure)
            axes = figure.add_axes((0.09, 0.13, 0.61, 0.77))  # the labels stand in the right margin
            if plot(axes, document):
                file = into / f"{name}{suffix}"
                metadata = {"Date": None} if suffix == ".svg" else None
                figure.savefig(file, metadata=metadata, dpi=120)
                written.append(file)
    return written


def main() -> None:
    """Read figures, write plots, say where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="a file of figures")
    parser.add_argument("--into", type=Path, default=Path("plots"), help="the folder to write to")
    parser.add_argument("--png", action="store_true", help="PNG instead of SVG")
    arguments = parser.parse_args()
    document = json.loads(arguments.results.read_text(encoding="utf-8"))
    for file in write_plots(document, arguments.into, ".png" if arguments.png else ".svg"):
        print(file)


if __name__ == "__main__":
    main()
