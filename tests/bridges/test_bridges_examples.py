"""The examples of bridges learn the digits, alone and on a cluster of processes."""

import os
import re
import sys
from pathlib import Path

import pytest

from helpers import processes
from helpers.pages import ROOT
from helpers.waiting import scaled

pytestmark = pytest.mark.bridges

LOCAL = [*processes.ROPEWALK, "local", "--plain", "--workers", "2", "--ps", "2"]
CASES = [
    pytest.param(framework, command, "jax", id=f"{framework}-{where}")
    for framework in ("jax", "keras", "torch")
    for where, command in (("alone", [sys.executable]), ("cluster", LOCAL))
] + [pytest.param("keras", LOCAL, below, id=f"keras-{below}") for below in ("torch", "tensorflow")]


@pytest.mark.parametrize(("framework", "command", "below"), CASES)
def test_the_example_learns_the_digits(
    framework: str, command: list[str], below: str, tmp_path: Path
) -> None:
    pytest.importorskip(framework)
    pytest.importorskip(below)
    program = ROOT / "examples" / f"digits_{framework}.py"
    code, output, errors = processes.run(
        [*command, program],
        timeout_s=scaled(90),
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": below, "OMP_NUM_THREADS": "1"},
    )
    assert code == 0, output + errors
    assert framework != "keras" or (tmp_path / "digits.keras").is_file()
    found = re.findall(r"test accuracy ([\d.]+)$", output, flags=re.MULTILINE)
    assert found, output
    assert float(found[-1]) >= 0.9


def before_and_after() -> dict[str, list[str]]:
    """Our lines in docs/jax.md, and what a program of JAX alone has in the place of each."""
    found: dict[str, list[str]] = {}
    block = (ROOT / "docs" / "jax.md").read_text().partition("```diff\n")[2].partition("```")[0]
    removed: list[str] = []
    for line in block.splitlines():
        if line.startswith("-"):
            removed.append(line[1:])
        elif line.startswith("+"):
            found[line[1:]] = removed
            removed = []
    return found


@pytest.mark.parametrize(
    ("framework", "most", "tolerance"), [("keras", 3, 0.05), ("torch", 3, 0.005), ("jax", 6, 0.005)]
)
def test_few_lines_of_an_example_are_ours(
    framework: str, most: int, tolerance: float, tmp_path: Path
) -> None:
    """Without them it is a program of the framework, with the same result on one seed."""
    pytest.importorskip(framework)
    pytest.importorskip("jax")
    program = ROOT / "examples" / f"digits_{framework}.py"
    _, _, code = program.read_text().split('"""')
    lines = code.splitlines()
    ours = [line for line in lines if re.search(r"\b(rw|ropewalk|strategy|state)\b", line)]
    assert len(ours) <= most, ours
    instead = {"with strategy.scope():": ["if True:"]}
    if framework == "jax":
        instead = before_and_after()
        assert list(instead) == ours
    plain = tmp_path / "plain.py"
    kept = [instead.get(line, []) if line in ours else [line] for line in lines]
    plain.write_text("\n".join(line for part in kept for line in part))
    results = []
    for each in (program, plain):
        status, output, errors = processes.run(
            [sys.executable, each],
            timeout_s=scaled(90),
            cwd=tmp_path,
            env={**os.environ, "KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "1"},
        )
        assert status == 0, output + errors
        results.append(float(output.rpartition(" ")[2]))
    assert results[0] == pytest.approx(results[1], abs=tolerance)


def test_a_moved_program_trains_by_fit_on_parameter_servers(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    pytest.importorskip("jax")
    program = ROOT / "examples" / "ported" / "parameter_server_fit.py"
    code, output, errors = processes.run(
        [*LOCAL, program],
        timeout_s=scaled(90),
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "1"},
    )
    assert code == 0, output + errors
    found = re.findall(r"accuracy ([\d.]+)$", output, flags=re.MULTILINE)
    assert float(found[-1]) >= 0.93, output
    assert len(list(tmp_path.glob("digits-*.weights.h5"))) == 5  # the chief's alone
    assert len((tmp_path / "digits.csv").read_text().splitlines()) == 6


LARGER = [
    pytest.param("wide_and_deep_jax", r"AUC", 0.72, 1.0, [sys.executable], id="clicks"),
    pytest.param("gpt_torch", r"test loss", 1.0, 2.6, LOCAL, id="gpt"),
]


@pytest.mark.parametrize(("name", "metric", "least", "most", "command"), LARGER)
def test_a_larger_example_reaches_what_it_promises(
    name: str, metric: str, least: float, most: float, command: list[str], tmp_path: Path
) -> None:
    """And writes its curves."""
    pytest.importorskip(name.rpartition("_")[2])
    program = ROOT / "examples" / f"{name}.py"
    logdir = ["--", "--logdir", "logs"] if command is LOCAL else ["--logdir", "logs"]
    code, output, errors = processes.run(
        [*command, program, *logdir], timeout_s=scaled(120), cwd=tmp_path
    )
    assert code == 0, output + errors
    found = re.findall(rf"\b{metric} ([\d.]+)$", output, flags=re.MULTILINE)
    assert found, output
    assert least <= float(found[-1]) <= most, output
    assert list((tmp_path / "logs").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_dlrm_learns_from_its_tables(framework: str, tmp_path: Path) -> None:
    """The best number of the visits alone reaches an AUC of 0.6."""
    pytest.importorskip(framework)
    code, output, errors = processes.run(
        [sys.executable, ROOT / "examples" / f"dlrm_{framework}.py", "--steps", "100"],
        timeout_s=scaled(90),
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert code == 0, output + errors
    found = re.findall(r"AUC ([\d.]+)$", output, flags=re.MULTILINE)
    assert found, output
    assert float(found[-1]) >= 0.63
