"""``make gpu``: who can look at a row, what becomes of it, and its rows on played GPUs."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.processes import ROOT
from helpers.strict_cupy import played_gpus
from helpers.waiting import scaled, wait_until

if not (ROOT / "tools").is_dir():
    pytest.skip("needs a checkout: tools/ is not in an sdist", allow_module_level=True)

from tools.gpu_check import rows as gpu_rows
from tools.gpu_check.__main__ import main as command_line
from tools.gpu_check.looking import look
from tools.gpu_check.rows import (
    Machine,
    Measured,
    Result,
    Row,
    Skip,
    Verdict,
    all_rows,
    chosen,
    exit_code,
    result_of,
    why_skipped,
)
from tools.gpu_check.running import Runner
from tools.gpu_check.showing import summary, table_of, writer

DRY = ("arrays", "strategies", "nccl.one_worker", "nccl.between_gpus")


def row(name: str = "arrays.a_row", look: Any = lambda: "seen", **options: Any) -> Row:
    return Row(name, "It holds.", "docs/gpu.md", "all", look, **options)


# -- who can look ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "machine", "why"),
    [
        ({}, Machine(("4",), frozenset()), ""),
        ({"needs": ("cupy",)}, Machine(("4",), frozenset({"jax"})), "cupy is not installed"),
        (
            {"needs": ("cupy", "torch")},
            Machine(("4",), frozenset()),
            "cupy and torch are not installed",
        ),
        ({}, Machine((), frozenset()), "needs 1 GPU, there is none"),
        ({"gpus": 2}, Machine(("4",), frozenset()), "needs 2 GPUs, there is 1"),
        ({"gpus": 4}, Machine(("4", "5"), frozenset()), "needs 4 GPUs, there are 2"),
        ({"on_card": True}, Machine(("4",), frozenset(), is_played=True), "knows nothing"),
        ({"on_card": True}, Machine(("4",), frozenset()), ""),
    ],
    ids=["all there", "a module", "two modules", "no GPU", "one", "two", "stand-in", "card"],
)
def test_a_row_is_skipped_for_a_reason(options: dict[str, Any], machine: Machine, why: str) -> None:
    found = why_skipped(row(**options), machine)
    assert bool(found) == bool(why)
    assert why in found


@pytest.mark.parametrize(
    ("only_one", "is_played", "variables"),
    [
        (False, False, {"CUDA_VISIBLE_DEVICES": "4,MIG-1"}),
        (True, False, {"CUDA_VISIBLE_DEVICES": "4"}),
        (False, True, {gpu_rows.STAND_IN: "2", "FAKE_GPUS": "2"}),
        (True, True, {gpu_rows.STAND_IN: "2", "FAKE_GPUS": "0"}),
    ],
    ids=["all", "one", "all played", "a framework beside the stand-in"],
)
def test_a_row_sees_the_gpus_that_it_is_about(
    only_one: bool, is_played: bool, variables: dict[str, str]
) -> None:
    machine = Machine(("4", "MIG-1"), frozenset(), is_played=is_played)
    assert gpu_rows.variables_of(row(only_one=only_one), machine) == variables


def test_rows_are_chosen_by_section_and_by_name() -> None:
    rows = [row("a.one"), row("a.two"), row("b.one")]
    assert chosen(rows, []) == rows
    assert chosen(rows, ["a"]) == rows[:2]
    assert chosen(rows, ["a.two", "b"]) == rows[1:]
    with pytest.raises(ValueError, match=r"no row or section c, a\.three"):
        chosen(rows, ["a", "c", "a.three"])


@pytest.mark.annex("ring")
def test_every_row_says_what_is_promised_where_and_what_is_wanted() -> None:
    rows = all_rows()
    assert len({each.name for each in rows}) == len(rows)
    for each in rows:
        assert each.promise.endswith("."), each.name
        assert each.wanted, each.name
        page, _, anchor = each.page.partition("#")
        assert (ROOT / page).is_file(), f"{each.name}: there is no {page}"
        heading = f"# {anchor.replace('-', ' ')}\n"
        assert not anchor or heading in (ROOT / page).read_text().lower()


# -- what becomes of it ----------------------------------------------------------------------


def raising(error: Exception) -> Any:
    def look() -> str:
        raise error

    return look


@pytest.mark.parametrize(
    ("look_at", "verdict", "got"),
    [
        (lambda: "3 dtypes", Verdict.PASS, "3 dtypes"),
        (lambda: Measured(0.98, "1 ms"), Verdict.PASS, "98%: 1 ms"),
        (lambda: Measured(0.5, "2 ms"), Verdict.FAIL, "50%: 2 ms"),
        (raising(Skip("sees no GPU")), Verdict.SKIP, "sees no GPU"),
        (raising(AssertionError("3, not 4")), Verdict.FAIL, "AssertionError: 3, not 4"),
    ],
    ids=["text", "enough", "too little", "skip", "error"],
)
def test_what_a_row_finds_is_a_verdict(look_at: Any, verdict: Verdict, got: str) -> None:
    found = look(row(look=look_at, least=0.97))
    assert (found.verdict, found.got) == (verdict, got)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["PASS", "SKIP"], 0),
        (["PASS", "FAIL", "SKIP"], 1),
        (["SKIP"], 2),
        ([], 2),
    ],
    ids=["passed", "failed", "nothing ran", "no row"],
)
def test_the_exit_code_says_whether_something_failed_or_nothing_is_known(
    verdicts: list[str], code: int
) -> None:
    assert exit_code([result_of(row(), Verdict(each), "") for each in verdicts]) == code


# -- processes -------------------------------------------------------------------------------

# What looks at a row is this program, not a row: it begins in no time.
PROGRAM = """
    import json, os, subprocess, sys, time
    name, answer = sys.argv[1:]
    if name == "a.hangs":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open(os.environ["PIDS"], "w").write(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    if name == "a.crashes":
        print("what was last said", flush=True)
        os.kill(os.getpid(), 11)
    result = {"verdict": "PASS", "got": f"{name} of {os.environ['FROM']}", "seconds": 1.5}
    open(answer, "w").write(json.dumps(result))
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """What looks at rows."""
    path = tmp_path / "looking.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return [sys.executable, "-S", str(path)]


def ran(command: list[str], rows: list[Row], budget_s: float = 600, **more: str) -> list[Result]:
    machine = Machine(("4",), frozenset())
    told: list[Result] = []
    found = Runner(machine, {"FROM": "here", **more}, budget_s, command).run(rows, 2, told.append)
    assert sorted(told, key=str) == sorted(found, key=str), "each is told of as it comes"
    return found


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def assert_have_ended(pids: Path) -> None:
    for pid in map(int, pids.read_text().split()):
        wait_until(partial(has_ended, pid), scaled(10), "the end of a row's process")


def test_results_come_in_the_order_of_the_rows(command: list[str]) -> None:
    rows = [row("a.alone", least=0.9), row("a.one"), row("a.two", gpus=2), row("a.three")]
    found = ran(command, rows)
    assert [each.row for each in found] == [each.name for each in rows]
    assert [each.verdict for each in found] == ["PASS", "PASS", "SKIP", "PASS"]
    assert found[1].got == "a.one of here"


def test_a_row_that_hangs_costs_its_limit_and_leaves_no_process(
    command: list[str], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    hangs = row("a.hangs", limit_s=scaled(2))
    hanging, after = ran(command, [hangs, row("a.one")], PIDS=str(pids))
    assert hanging.verdict is Verdict.FAIL
    assert "no end within" in hanging.got
    assert after.verdict is Verdict.PASS
    assert_have_ended(pids)


def test_a_row_that_crashes_says_how_and_what_was_said_last(command: list[str]) -> None:
    (found,) = ran(command, [row("a.crashes")])
    assert found.verdict is Verdict.FAIL
    assert found.got == "ended with SIGSEGV; what was last said"


def test_rows_for_which_no_time_is_left_are_skipped(command: list[str]) -> None:
    (found,) = ran(command, [row("a.one")], budget_s=0)
    assert (found.verdict, found.got) == (Verdict.SKIP, "no time is left of 0 s")


def test_who_ends_the_check_ends_its_rows(command: list[str], tmp_path: Path) -> None:
    """Also where that is an exception in the thread that waits, as of Ctrl-C."""
    pids = tmp_path / "pids"
    runner = Runner(Machine(("4",), frozenset()), {"FROM": "", "PIDS": str(pids)}, 600, command)

    def tell(result: Result) -> None:
        wait_until(lambda: pids.exists() and pids.read_text(), scaled(20), "a row that hangs")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run([row("a.hangs", limit_s=600), row("a.one")], 2, tell)
    assert_have_ended(pids)


# -- showing ---------------------------------------------------------------------------------


def test_results_are_lines_of_json_and_one_table(tmp_path: Path) -> None:
    results = [
        result_of(row("a.one"), Verdict.PASS, "3 [dtypes]"),
        result_of(row("a.two"), Verdict.FAIL, "no"),
        result_of(row("a.three"), Verdict.SKIP, "why"),
    ]
    path, console = tmp_path / "new" / "gpu.jsonl", Console(record=True, width=160)
    tell = writer(path, console, {"cards": "one"})
    for each in results:
        tell(each)
    header, *lines = map(json.loads, path.read_text().splitlines())
    assert header == {"cards": "one"}
    assert [line["verdict"] for line in lines] == ["PASS", "FAIL", "SKIP"]
    console.print(table_of(results, "a card"))
    shown = console.export_text()
    assert "3 [dtypes]" in shown
    assert shown.rindex("a.three") < shown.rindex("a.two"), "what failed is last"
    assert summary(results) == "1 PASS, 1 FAIL, 1 SKIP"


@pytest.mark.annex("ring")
def test_the_command_runs_the_rows_that_are_named_and_writes_what_it_found(
    tmp_path: Path,
) -> None:
    """On played GPUs, in processes of their own, as ``make gpu`` does it."""
    path = tmp_path / "gpu.jsonl"
    names = "strategies.clipping,strategies.each_on_its_gpu,environment.compiles"
    flags = ["--stand-in", "1", "--rows", names, "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu_check", *flags],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=False,
        capture_output=True, text=True, timeout=scaled(90),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    _, *lines = map(json.loads, path.read_text().splitlines())
    found = {line["row"]: line["verdict"] for line in lines}
    assert found == dict(zip(names.split(","), ["PASS", "SKIP", "SKIP"], strict=True))
    assert "1 PASS, 0 FAIL, 2 SKIP" in done.stdout


@pytest.mark.annex("ring")
@pytest.mark.parametrize(
    ("flags", "code", "shown"),
    [
        (["--list"], 0, "strategies.clipping"),
        (["--rows", "arrays.nope"], 2, "no row or section arrays.nope"),
    ],
    ids=["list", "unknown"],
)
def test_the_command_shows_what_there_is(
    flags: list[str],
    code: int,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert command_line(flags) == code
    assert shown in capsys.readouterr().out


# -- rows on played GPUs ---------------------------------------------------------------------


@pytest.fixture(params=[1, 2, 3], ids=["1 GPU", "2 GPUs", "3 GPUs"])
def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """So many GPUs of the stand-in."""
    monkeypatch.setenv(gpu_rows.STAND_IN, str(request.param))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with played_gpus(request.param):
        yield Machine(("0",) * request.param, frozenset({"cupy"}), is_played=True)


@pytest.mark.annex("ring")
def test_rows_hold_on_played_gpus(played: Machine) -> None:
    ran = [each for each in chosen(all_rows(), DRY) if not why_skipped(each, played)]
    assert len(ran) >= 11
    found = [look(each) for each in ran]
    assert {each.row: each.got for each in found if each.verdict is Verdict.FAIL} == {}


@pytest.mark.annex("ring")
def test_a_row_fails_where_a_write_goes_wrong(
    played: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wanted,) = chosen(all_rows(), ["arrays.rows_of_variables"])
    write = "ropewalk.distribute.variables.scatter._change_rows_on_gpu"
    monkeypatch.setattr(write, lambda *_: None)
    assert look(wanted).verdict is Verdict.FAIL
