"""The programs of docs/pytorch.md run, where PyTorch is installed."""

import re
import sys
from pathlib import Path

import pytest

from helpers import processes
from helpers.pages import ROOT
from helpers.waiting import scaled

pytestmark = pytest.mark.bridges

pytest.importorskip("torch")

PAGE = (ROOT / "docs" / "pytorch.md").read_text()
EXAMPLES = re.findall(r"^``` {\.python \.torch}\n(.*?)^```", PAGE, flags=re.M | re.S)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_runs(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    program = compile(EXAMPLES[number], f"pytorch.md, example {number + 1}", "exec")
    exec(program, {"__name__": "example"})  # noqa: S102 - our own page


IN_SYNC = ["--workers", "3", "--ps", "0", "--no-chief"]


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [("ParameterServer", ["--workers", "2", "--ps", "1"]), ("MultiWorkerMirrored", IN_SYNC)],
    ids=["asynchronous", "in sync"],
)
def test_an_evaluation_by_three_workers_counts_each_example_once(
    strategy: str, workers: list[str], tmp_path: Path
) -> None:
    """Of 31 examples in batches of 5 the workers have three, two and two batches."""
    [program] = (each for each in EXAMPLES if "SparseCategoricalAccuracy" in each)
    program = program.replace("ParameterServerStrategy", f"{strategy}Strategy")
    (tmp_path / "train.py").write_text(program)
    command = [*processes.ROPEWALK, "local", "--plain", *workers, "train.py"]
    code, output, errors = processes.run(command, timeout_s=scaled(90), cwd=tmp_path)
    assert code == 0, output + errors
    found = re.findall(r"examples (\d+), accuracy ([\d.]+)", output)
    assert [count for count, _ in found] == ["31"] * 3, output
    assert len(set(found)) == 1, "all have read the same"
    assert float(found[0][1]) > 0.8


@pytest.mark.parametrize(
    ("command", "replicas"),
    [
        pytest.param([sys.executable], 1, id="python"),
        pytest.param([sys.executable], 2, id="two replicas"),
        pytest.param(
            [*processes.ROPEWALK, "local", "--plain", "--workers", "2", "--ps", "2"], 1, id="local"
        ),
    ],
)
def test_the_program_by_hand_learns_the_digits(
    command: list[str], replicas: int, tmp_path: Path
) -> None:
    """Without a warning of PyTorch, which would be an error here."""
    starts = tmp_path / "train.py"
    starts.write_text(
        "import runpy, warnings, ropewalk\n"
        "warnings.simplefilter('error', UserWarning)\n"
        f"ropewalk.config.set_logical_cpu_devices({replicas})\n"
        f"runpy.run_path({str(ROOT / 'examples' / 'pytorch_by_hand.py')!r})\n"
    )
    code, output, errors = processes.run([*command, starts], timeout_s=scaled(90), cwd=tmp_path)
    assert code == 0, output + errors
    found = re.findall(r"test accuracy ([\d.]+)$", output, flags=re.MULTILINE)
    assert found, output
    assert float(found[-1]) >= 0.9
