"""Names in the order that people expect: ``w-2`` before ``w-10``."""

import re


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which numbers in names are compared as numbers, and come before letters."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    return [(-1, part.lstrip("0").zfill(20)) if part.isdigit() else (0, part) for part in parts]
