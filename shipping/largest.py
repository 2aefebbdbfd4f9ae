"""Largest parts of a project: for the error that says it is too large. Pure."""

from collections import defaultdict
from collections.abc import Mapping


def largest(weights: Mapping[str, int], count: int = 5) -> list[tuple[str, int]]:
    """Find the heaviest files and folders, the heaviest first.

    A folder of which one single entry holds more than half is passed over in favour of that entry,
    so a path of folders inside each other is named once.

    Args:
        weights: Bytes (or any other amount) by the file's name, relative to the project.
        count: Number of files and folders to name.

    Returns:
        Names, folders with a slash behind them, and amounts.
    """
    total: dict[str, int] = defaultdict(int)
    heaviest_inside: dict[str, int] = defaultdict(int)
    for name, weight in weights.items():
        total[name] = weight
        for at, letter in enumerate(name):
            if letter == "/":
                total[name[: at + 1]] += weight
    for name, weight in total.items():
        folder = name.rstrip("/").rpartition("/")[0]
        if folder:
            heaviest_inside[f"{folder}/"] = max(heaviest_inside[f"{folder}/"], weight)
    telling = [
        (name, weight) for name, weight in total.items() if 2 * heaviest_inside[name] <= weight
    ]
    return sorted(telling, key=lambda item: (-item[1], item[0]))[:count]
