"""A file that says that a machine is about to be taken away."""

import pytest

from ropewalk.annexes.preemption.task_process import pass_on


def test_a_process_is_asked_once_when_the_file_is_there(caplog: pytest.LogCaptureFixture) -> None:
    looks, asked = iter([False, False, True]), list[str]()
    pass_on("ps:1", lambda: next(looks), "/notice", look_s=0, ask=lambda: asked.append("asked"))
    assert asked == ["asked"]
    assert list(looks) == []
    assert caplog.messages == ["ps:1 leaves: there is /notice (preemption_file)"]
