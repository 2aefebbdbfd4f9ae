"""The process of a ps: what it leaves out of what others could use."""

import sys
from typing import Any

import pytest

from windlass.cluster.resolved import ResolvedTask
from windlass.cluster.spec import ClusterSpec
from windlass.core.exit_codes import ExitCode
from windlass.core.settings import Settings
from windlass.core.task import TaskId
from windlass.server.ps import server
from windlass.worker.daemon import run_ps

PS = TaskId("ps", 0)


class Served:
    """A server whose job is over at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.without_scipy = "scipy" in sys.modules and sys.modules["scipy"] is None

    def start(self, address: str) -> None:
        Served.seen = self.without_scipy

    def wait(self) -> ExitCode:
        return ExitCode.DONE

    def drain(self) -> None: ...
    def stop(self) -> None: ...

    seen = False


@pytest.mark.parametrize("rule_modules", ["", "my_rules"])
def test_a_ps_loads_scipy_only_for_rules_of_the_programs_own(
    rule_modules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy", sys)  # so that it is put back as it was
    monkeypatch.delitem(sys.modules, "scipy")
    monkeypatch.setattr(server, "PsServer", Served)
    monkeypatch.setattr("windlass.worker.daemon.handle_signals", lambda _: None)
    task = ResolvedTask(PS, ClusterSpec({"ps": ["127.0.0.1:0"]}), PS, address="127.0.0.1:0")
    try:
        assert run_ps(task, Settings(rule_modules=rule_modules)) == ExitCode.DONE
    finally:
        sys.modules.pop("scipy", None)
    assert Served.seen is not bool(rule_modules)
