"""The comparison of ``fit``: who is compared with whom, and what becomes of one that fails."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks import fits
from benchmarks.compare import Outcome


def outcome(small_ms: float) -> Outcome:
    return Outcome({"results": [{"case": "fit-small", "median_ms": small_ms, "loss": 1.0}]})


def test_peers_are_compared_with_ours_of_the_same_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {("jax", 0): 2.0, ("tensorflow", 0): 4.0, ("jax", 2): 1.0, ("tensorflow", 2): 5.0}
    monkeypatch.setattr(fits, "ours", lambda _, backend, servers: outcome(taken[backend, servers]))
    monkeypatch.setattr(
        fits,
        "run_script",
        lambda command, _: outcome(10.0) if "tf_keras" in command[-1] else Outcome({}, "no such"),
    )
    document: dict[str, Any] = list(fits.rounds(2, Path("ours"), Path("theirs")))[-1]
    cells = {row[1]: row[2:] for row in fits.table_rows(document)}
    assert cells["MultiWorkerMirrored, tf_keras"] == ["10.0", "2.5× / 5.0×"]
    assert cells["ParameterServer, tf_keras"] == ["10.0", "2.0× / 10×"]
    assert cells["ropewalk, JAX, in sync"] == ["2.00", ""]
    assert document["failures"] == {"MultiWorkerMirrored, Keras 3": "no such"}
    assert all(len(row["rounds_ms"]) == 2 for row in document["results"])
