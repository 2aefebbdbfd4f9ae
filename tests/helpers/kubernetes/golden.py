"""Whole files that a job is rendered as: ``UPDATE_GOLDEN=1`` writes them anew."""

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "annex" / "kubernetes" / "golden"


def golden(name: str, text: str) -> None:
    """Compare a text with the file of that name."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} is different; UPDATE_GOLDEN=1 writes it"
