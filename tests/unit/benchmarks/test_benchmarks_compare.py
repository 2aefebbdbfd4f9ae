"""What the comparison makes of figures: rows, ratios, reasons, plots."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import compare, plots
from benchmarks.cases import CASES, Case, pick, wants_sparse
from benchmarks.compare import Outcome
from benchmarks.peers import harness
from rich.console import Console


def row(case: str, median_ms: float | None, **more: Any) -> dict[str, Any]:
    return {"case": case, "bytes_both_ways": 20480, "median_ms": median_ms, "steps": 5, **more}


OURS = Outcome(
    {
        "limits": {"socket_gb_per_s": 2.5, "memory_copy_gb_per_s": 10.0},
        "results": [
            row("small", 0.5, system="ropewalk tcp"),
            row("small", 0.25, system="ropewalk shm"),
        ],
        "start_s": 2.0,
    }
)
RAY = Outcome(
    {
        "system": "ray 2.60.0",
        "results": [row("small", 1.0), row("many", None, reason="takes minutes")],
        "start_s": 3.25,
    }
)
BROKEN = Outcome({}, "exit code 1: No module named 'tensorflow'")


def shown(document: dict[str, Any]) -> str:
    out = io.StringIO()
    compare.show(document, Console(file=out, width=160))
    return out.getvalue()


def test_cases_are_picked_in_their_own_order_and_all_without_a_choice() -> None:
    assert [case.id for case in pick(["4mb", "small"])] == ["small", "4mb"]
    assert pick([]) == CASES
    assert pick(["sparse"]) == []
    assert [wants_sparse(ids) for ids in ([], ["sparse", "4mb"], ["4mb"])] == [True, True, False]
    with pytest.raises(ValueError, match="no case 5mb"):
        pick(["5mb"])


def test_bytes_count_every_value_there_and_back() -> None:
    assert pick(["64mb"])[0].bytes_both_ways == 2 * 4 * 4 * 4096 * 1024


def test_each_peer_is_compared_with_each_of_ours() -> None:
    titles, rows = compare.table_rows(compare.merge(OURS, {"ray": RAY}))
    assert titles == [
        "case", "ropewalk shm\nms", "ropewalk tcp\nms", "ray 2.60.0\nms (to shm / tcp)"
    ]  # fmt: skip
    assert rows == [
        ["10 × (16, 16), SGD", "0.25", "0.50", "1.00 (4.0× / 2.0×)"],
        ["10000 × (64,), SGD", "–", "–", "–"],
    ]


@pytest.mark.parametrize(
    ("theirs", "mine", "text"),
    [
        pytest.param(30.0, 2.0, "15×", id="many times slower"),
        pytest.param(3.0, 2.0, "1.5×", id="slower"),
        pytest.param(1.0, 2.0, "0.50×", id="faster than ours"),
        pytest.param(None, 2.0, "–", id="not measured"),
        pytest.param(1.0, None, "–", id="ours not measured"),
    ],
)
def test_ratio_is_theirs_over_ours(theirs: float | None, mine: float | None, text: str) -> None:
    assert compare.ratio(theirs, mine) == text


def test_a_peer_that_failed_is_shown_with_its_reason() -> None:
    document = compare.merge(OURS, {"tensorflow": BROKEN, "ray": RAY})
    assert document["failures"] == {"tensorflow": BROKEN.failure}
    text = shown(document)
    assert "tensorflow: no figures: exit code 1: No module named 'tensorflow'" in text
    assert "ray 2.60.0, many: takes minutes" in text
    assert "limits of this machine, GB/s: socket 2.5, memory copy 10.0" in text
    assert "from start to the first step, s: ropewalk 2.0, ray 2.60.0 3.2" in text


def test_figures_of_ours_that_are_missing_are_seen_to_be_missing() -> None:
    document = compare.merge(BROKEN, {"ray": RAY})
    titles, rows = compare.table_rows(document)
    assert titles == [
        "case", "ropewalk shm\nms", "ropewalk tcp\nms", "ray 2.60.0\nms (to shm / tcp)"
    ]  # fmt: skip
    assert rows[0][1:] == ["–", "–", "1.00 (– / –)"]
    assert "ropewalk: no figures: exit code 1" in shown(document)


def test_without_figures_of_ours_the_comparison_fails_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {"benchmarks.step": Outcome({}, "not finished in 9 s")}
    monkeypatch.setattr(compare, "measured", lambda module, _: outcomes.get(module, BROKEN))
    monkeypatch.setattr(compare, "peer", lambda *_: RAY)
    monkeypatch.setattr(compare, "run_script", lambda *_: BROKEN)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit, match=r"ropewalk gave no figures.*: not finished in 9 s"):
        compare.main(["--json", str(tmp_path / "figures.json")])
    assert not (tmp_path / "figures.json").exists()


def test_ours_is_waited_for_as_long_as_the_peers_are_and_longer_on_a_busy_machine() -> None:
    one = compare.limit_s(4.0, 1, load=0.5, cores=2)
    assert one == 240
    assert compare.limit_s(4.0, len(compare.OURS), load=0.5, cores=2) == 3 * one
    assert compare.limit_s(4.0, 1, load=20.0, cores=2) == 10 * one


def test_a_start_of_ours_that_failed_is_told() -> None:
    mine = Outcome({**OURS.document, "start_s": None, "start_reason": "exit code 1: no"})
    assert compare.merge(mine, {})["failures"] == {"ropewalk, start": "exit code 1: no"}


@pytest.mark.parametrize(
    ("code", "printed", "errors", "failure"),
    [
        pytest.param(0, 'noise\n{"results": []}\n', "", "", id="last line counts"),
        pytest.param(1, '{"results": []}', "a\nb\n", "exit code 1: b", id="failed"),
        pytest.param(-9, "", "", "exit code -9: it said nothing", id="killed"),
        pytest.param(0, "hello", "", "printed no JSON: hello", id="no JSON"),
        pytest.param(0, "[1]", "", "printed JSON without results", id="another JSON"),
    ],
)
def test_what_a_script_left_becomes_an_outcome(
    code: int, printed: str, errors: str, failure: str
) -> None:
    assert compare.read_outcome(code, printed, errors).failure == failure


def test_a_missing_virtual_environment_is_a_reason_not_an_error(tmp_path: Path) -> None:
    outcome = compare.run_script([str(tmp_path / "python"), "-m", "x"], timeout_s=5)
    assert "No such file or directory; see `make bench-peers`" in outcome.failure


def test_a_script_that_hangs_is_ended() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert compare.run_script(command, timeout_s=0.5).failure == "not finished in 0.5 s"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_reference_finds_a_step_applied_twice(optimizer: str) -> None:
    case = Case("tiny", "2 × (3,)", 2, (3,), optimizer)
    one, two = harness.Reference(case), harness.Reference(case)
    one.advance()
    two.advance()
    two.advance()
    one.compare([value.astype(np.float32) for value in one._values])
    with pytest.raises(AssertionError):
        one.compare([value.astype(np.float32) for value in two._values])


def test_measuring_checks_every_value_of_every_step() -> None:
    case = Case("tiny", "2 × (3,)", 2, (3,), "sgd")
    values, gradients = harness.starting_values(case), harness.gradients(case)

    def step() -> harness.Values:
        for value, gradient in zip(values, gradients, strict=True):
            np.subtract(value, np.float32(0.1) * gradient, out=value)
        return values

    result = harness.measure(case, step, budget_s=0, check=True, warm_up=1)
    assert result["steps"] == harness.MIN_STEPS
    assert result["checked"] == 2 * (1 + harness.MIN_STEPS)
    assert result["p10_ms"] <= result["median_ms"] <= result["p90_ms"]


@pytest.mark.parametrize(
    ("wanted", "placed"),
    [
        pytest.param([0, 20, 40], [0, 20, 40], id="apart already"),
        pytest.param([10, 10], [5, 15], id="on each other"),
        pytest.param([10, 11, 19], [3.33, 13.33, 23.33], id="one group from three"),
        pytest.param([], [], id="none"),
    ],
)
def test_labels_keep_their_distance_and_order(wanted: list[float], placed: list[float]) -> None:
    assert plots.spread(wanted, gap=10) == pytest.approx(placed, abs=0.01)


def test_a_plot_is_written_for_each_series_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the dependency group bench")
    document = {
        "limits": {"socket_gb_per_s": 2.5},
        "results": [row("small", 0.5, system="ropewalk shm"), row("many", None, system="x")],
        "by_workers": [
            {"system": "ropewalk shm", "workers": n, "steps_per_s": 100.0 * n} for n in (1, 2)
        ],
    }
    written = plots.write_plots(json.loads(json.dumps(document)), tmp_path / "plots")
    assert [file.name for file in written] == ["by-bytes.svg", "by-workers.svg"]
    assert "socket, 2.5 GB/s" in written[0].read_text(encoding="utf-8")
    assert "ropewalk shm" in written[1].read_text(encoding="utf-8")


def test_closures_are_compared_where_both_were_measured() -> None:
    rows = [
        {"system": "ropewalk", "case": "empty", "workers": 1, "median_ms": 0.1},
        {"system": "ropewalk", "case": "a case of ours", "workers": 1, "median_ms": 1.0},
        {"system": "tensorflow 2", "case": "empty", "workers": 1, "median_ms": 2.6},
        {"system": "tensorflow 2", "case": "empty", "workers": 2, "median_ms": 2.0},
    ]
    assert compare.closure_rows({"closures": rows}) == [["empty", "1", "0.100", "2.600", "26×"]]
