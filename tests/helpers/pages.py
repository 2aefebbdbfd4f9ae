"""The pages of the documentation, and the Python examples on them."""

import json
import re
from pathlib import Path

from .sources import ROOMS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOM_PAGES = sorted(page for room in (*ROOMS, "tests") for page in (ROOT / room).rglob("README.md"))
"""What each room is and what holds in it, for those who work on it."""


def examples(page: Path) -> list[str]:
    """The Python examples of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def cells(notebook: Path) -> list[str]:
    """The code cells of a notebook, in order."""
    found = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]
