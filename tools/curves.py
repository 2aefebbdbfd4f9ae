"""Draws the curves of event files as the SVG pictures of the documentation.

    ropewalk local --workers 2 --ps 2 examples/gpt_torch.py -- --logdir runs/gpt
    python tools/curves.py runs/gpt docs/images/gpt.svg --tags loss test_loss --y "loss (nats)"

Needs matplotlib and TensorBoard.
"""

import argparse
from pathlib import Path
from typing import Any

_COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2")


def points_of(logdir: Path, tag: str) -> tuple[list[int], list[float]]:
    """Steps and values of a scalar in an event folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(logdir), {"scalars": 0}).Reload().Scalars(tag)
    return [each.step for each in found], [each.value for each in found]


def smoothed(values: list[float], window: int) -> list[float]:
    """Means over the last so many values."""
    return [
        sum(part) / len(part)
        for part in (values[max(0, i + 1 - window) : i + 1] for i in range(len(values)))
    ]


def draw(curves: dict[str, tuple[list[int], list[float]]], label: str, target: Path) -> None:
    """One picture: values over global steps, the last value beside each curve's name."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "ropewalk", "font.size": 9, "path.simplify_threshold": 1})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 2.8))
    for colour, (tag, (steps, values)) in zip(_COLOURS, curves.items(), strict=False):
        axes.plot(steps, values, color=colour, label=f"{tag} ({values[-1]:.3g} at last)")
    axes.set(xlabel="global step", ylabel=label, xlim=(0, None))
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    metadata: dict[str, Any] = {"Date": None}
    figure.savefig(target, format="svg", metadata=metadata)


def main() -> None:
    """Draw what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logdir", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--tags", nargs="+", required=True)
    parser.add_argument("--y", default="")
    parser.add_argument("--window", type=int, default=10, help="steps that are averaged")
    arguments = parser.parse_args()
    curves = {}
    for tag in arguments.tags:
        steps, values = points_of(arguments.logdir, tag)
        window = arguments.window if len(values) > 10 * arguments.window else 1
        curves[tag] = (steps, smoothed(values, window))
    draw(curves, arguments.y, arguments.target)
    print(f"{arguments.target}: {arguments.target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
