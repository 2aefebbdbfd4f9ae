"""What the site shows beside its pages: notebooks, pictures, navigation, completion."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers import processes
from helpers.pages import PAGES, ROOT, cells
from helpers.waiting import scaled

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs_from_its_first_cell_to_its_last(notebook: Path, tmp_path: Path) -> None:
    assert notebook.name in (DOCS / "tutorials" / "index.md").read_text()
    assert notebook.stat().st_size < 20_000, "small, and without outputs"
    (tmp_path / "cells.py").write_text("\n\n".join(cells(notebook)))
    code, output, errors = processes.run(
        [sys.executable, "cells.py"], timeout_s=scaled(60), cwd=tmp_path
    )
    assert code == 0, output + errors
    assert output


def test_the_gallery_shows_every_picture_and_every_program() -> None:
    page = (DOCS / "gallery.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\(images/([^)]+)\)", page)
    assert sorted(shown) == sorted(path.name for path in (DOCS / "images").iterdir())
    for program in (ROOT / "examples").rglob("*.py"):
        place = program.relative_to(ROOT / "examples")
        named = {str(place), f"{place.parent}/*.py", f"{place.parent}/search.py"}
        assert any(f"`{name}`" in page for name in named), place


def test_the_navigation_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]

    def pages(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        return [page for each in inner for page in pages(each)]

    known = [path.relative_to(DOCS).as_posix() for path in PAGES if path.is_relative_to(DOCS)]
    assert sorted(pages(nav)) == sorted(known)


def test_the_shell_completes_commands_and_flags() -> None:
    for line in ("bash_source", "zsh_source", "fish_source"):
        assert f"_ROPEWALK_COMPLETE={line} ropewalk" in (DOCS / "quickstart.md").read_text()

    def completed(words: str) -> str:
        completing = {
            "_ROPEWALK_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        code, output, errors = processes.run(
            processes.ROPEWALK, timeout_s=scaled(30), env={**os.environ, **completing}
        )
        assert code == 0, errors
        return output

    assert "plain,status" in completed("ropewalk st")
    assert "plain,--workers" in completed("ropewalk local --work")
