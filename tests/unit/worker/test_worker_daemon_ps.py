"""The process of a ps: what it leaves out of what others could use."""

import sys
from typing import Any

import pytest

from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.server.ps import server
from ropewalk.worker.daemon import run_ps

PS = TaskId("ps", 0)
LEFT_OUT = ("scipy", "yaml", "cffi", "coverage")


class Served:
    """A server whose job is over at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.lease = None  # no chief is known to which this ps could be offered
        self.left_out = [name for name in LEFT_OUT if sys.modules.get(name, sys) is None]

    def start(self, address: str) -> None:
        Served.seen = self.left_out

    def wait(self) -> ExitCode:
        return ExitCode.DONE

    def drain(self) -> None: ...
    def stop(self) -> None: ...

    seen: list[str]


@pytest.mark.parametrize("rule_modules", ["", "my_rules"])
def test_a_ps_loads_what_numba_alone_looks_for_only_with_rules_of_the_program(
    rule_modules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in LEFT_OUT]:
        monkeypatch.delitem(sys.modules, name)
    for name in LEFT_OUT:
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is put back as it was
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(server, "PsServer", Served)
    monkeypatch.setattr("ropewalk.worker.daemon.handle_signals", lambda _: None)
    task = ResolvedTask(PS, ClusterSpec({"ps": ["127.0.0.1:0"]}), PS, address="127.0.0.1:0")
    try:
        assert run_ps(task, Settings(rule_modules=rule_modules)) == ExitCode.DONE
    finally:
        for name in LEFT_OUT:
            sys.modules.pop(name, None)
    assert Served.seen == ([] if rule_modules else list(LEFT_OUT))
