"""The programs of docs/tensorboard.md and docs/exports.md run."""

import re
from pathlib import Path

import pytest

from helpers.pages import ROOT

pytestmark = pytest.mark.bridges


@pytest.mark.parametrize(
    ("page", "needs"), [("tensorboard", "tensorboardX"), ("exports", "torch")], ids=str
)
def test_the_examples_of_a_page_run(
    page: str, needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    found = re.findall(r"^``` {\.python \.\w+}\n(.*?)^```", text, flags=re.M | re.S)
    assert found
    for number, code in enumerate(found, 1):
        program = compile(code, f"{page}.md, example {number}", "exec")
        exec(program, {"__name__": "example"})  # noqa: S102 - our own pages
