"""A driver that another process leads asks which checkpoint its job begins with."""

from types import SimpleNamespace
from typing import Any

from ropewalk.core.errors import PeerLostError
from ropewalk.core.task import TaskId
from ropewalk.worker.job_task import JobTask


def test_a_chief_that_did_not_answer_is_asked_again() -> None:
    answers = iter([PeerLostError("reset"), None, "step-5"])

    def status(**_: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, PeerLostError):
            raise answer
        return SimpleNamespace(begins_with=answer)

    driver: Any = SimpleNamespace(
        task=SimpleNamespace(task=TaskId("chief", 0)),
        check=lambda: None,
        _settings=SimpleNamespace(join_timeout_s=60.0),
    )
    chief: Any = SimpleNamespace(status=status)
    assert JobTask._ask_for_checkpoint(driver, chief) == "step-5"
