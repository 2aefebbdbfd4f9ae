"""The example of click logs with new ids every day, for a few days."""

import contextlib
import io
import re
import runpy
from dataclasses import dataclass
from functools import cache

import pytest

from helpers.processes import ROOT
from ropewalk.core.report import TableCounters

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "clicks_by_day.py"))


@dataclass(frozen=True)
class After:
    """What there is after some days."""

    tables: dict[str, TableCounters]  # by name
    auc: list[float]  # of each day
    pulled: int


@cache
def after(days: int, staleness_reads: int = 0) -> After:
    """Run the example for so many days."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        strategy = EXAMPLE["main"](days, staleness_reads=staleness_reads)
    session = strategy.extended.runtime.session
    found = re.findall(r"best [\d.]+, AUC ([\d.]+)$", said.getvalue(), flags=re.MULTILINE)
    assert len(found) == days
    tables = {each.name: each for each in session.peers[0].store.counters().tables}
    return After(tables, [float(each) for each in found], session.counters.pulled)


@pytest.mark.annex("embedding")
def test_tables_stay_as_large_as_they_are_while_ids_come_and_go() -> None:
    early, late = after(4), after(6)
    for kind in ("user", "ad"):
        before, now = early.tables[f"{kind}s"], late.tables[f"{kind}s"]
        assert now.rows <= 1.3 * EXAMPLE["ACTIVE"][kind]
        assert now.evicted > before.evicted
        assert now.refused > before.refused
        assert now.admitted > before.admitted
        assert now.num_bytes <= 1.05 * before.num_bytes
    assert late.auc[-1] >= 0.75 > 0.55 > late.auc[0]


@pytest.mark.annex("embedding")
def test_rows_that_are_many_lookups_old_predict_as_well_for_a_worker_alone() -> None:
    """The same bits: nothing but the worker's own gradients changes rows, and these show."""
    young, old = after(4), after(4, staleness_reads=100)
    assert old.auc == young.auc
    assert old.pulled < 0.6 * young.pulled
