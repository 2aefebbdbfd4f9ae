"""The example of click logs with new ids every day, for a few days."""

import re
import runpy
from typing import Any

import pytest

from helpers.processes import ROOT
from ropewalk.core.report import TableCounters


def tables_after(days: int) -> tuple[dict[str, TableCounters], Any]:
    """Counters of the tables, by name, and the example's names."""
    example = runpy.run_path(str(ROOT / "examples" / "clicks_by_day.py"))
    strategy = example["main"](days)
    store = strategy.extended.runtime.session.peers[0].store
    return {each.name: each for each in store.counters().tables}, example


@pytest.mark.annex("embedding")
def test_tables_stay_as_large_as_they_are_while_ids_come_and_go(
    capsys: pytest.CaptureFixture[str],
) -> None:
    early, example = tables_after(4)
    late, _ = tables_after(6)
    for kind in ("user", "ad"):
        before, after = early[f"{kind}s"], late[f"{kind}s"]
        assert after.rows <= 1.3 * example["ACTIVE"][kind]
        assert after.evicted > before.evicted
        assert after.refused > before.refused
        assert after.admitted > before.admitted
        assert after.num_bytes <= 1.05 * before.num_bytes
    found = re.findall(r"best [\d.]+, AUC ([\d.]+)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(found) == 4 + 6
    assert float(found[-1]) >= 0.75 > 0.55 > float(found[0])


@pytest.mark.annex("embedding")
def test_rows_that_are_many_lookups_old_predict_as_well_for_a_worker_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same bits: nothing but the worker's own gradients changes rows, and these show."""
    example = runpy.run_path(str(ROOT / "examples" / "clicks_by_day.py"))
    pulled = []
    for bound in (0, 100):
        strategy = example["main"](3, staleness_reads=bound)
        pulled.append(strategy.extended.runtime.session.counters.pulled)
    found = re.findall(r"AUC ([\d.]+)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert found[:3] == found[3:]
    assert pulled[1] < 0.6 * pulled[0]
