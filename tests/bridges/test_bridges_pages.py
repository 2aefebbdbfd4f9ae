"""The programs of docs/tensorboard.md and docs/exports.md run, each in a process of its own: Keras
has one backend in a process.
"""

import re
import sys
from pathlib import Path

import pytest

from helpers import processes
from helpers.pages import ROOT
from helpers.waiting import scaled

pytestmark = pytest.mark.bridges

FOUND = [
    pytest.param(code, needs, id=f"{page}-{number}")
    for page, needs in (("tensorboard", "tensorboardX"), ("exports", "torch"))
    for number, code in enumerate(
        re.findall(
            r"^``` {\.python \.\w+}\n(.*?)^```",
            (ROOT / "docs" / f"{page}.md").read_text(),
            flags=re.M | re.S,
        ),
        1,
    )
]


def test_the_pages_have_programs() -> None:
    assert len(FOUND) == 3


@pytest.mark.parametrize(("code", "needs"), FOUND)
def test_a_program_of_a_page_runs(code: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs)
    program = tmp_path / "train.py"
    program.write_text(code)
    status, output, errors = processes.run(
        [sys.executable, program], timeout_s=scaled(150), cwd=tmp_path
    )
    assert status == 0, output + errors
