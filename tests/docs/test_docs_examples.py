"""Every Python example in the documentation runs, in order, in a folder of its own."""

import re
from pathlib import Path

import pytest

from helpers.pages import PAGES, ROOM_PAGES, ROOT, examples


def name(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


ALL = [page for page in [*PAGES, ROOT / "CONTRIBUTING.md"] if examples(page)]


@pytest.mark.parametrize("page", ALL, ids=name)
def test_every_example_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for number, code in enumerate(examples(page), 1):
        program = compile(code, f"{page.name}, example {number}", "exec")
        exec(program, {"__name__": "example"})  # noqa: S102 - our own pages


def test_every_link_between_pages_leads_somewhere() -> None:
    others = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")]
    for page in [*PAGES, *ROOM_PAGES, *others]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
