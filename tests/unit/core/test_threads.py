"""What ends a thread early is logged, and told to whoever waits."""

import pytest

from ropewalk.core.process.threads import new_thread, nobody_waits


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), MemoryError()], ids=repr)
def test_whatever_a_thread_raises_is_logged_and_told(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        raise error

    told: list[BaseException] = []
    thread = new_thread("unlucky", work, failed=told.append)
    assert thread.daemon
    thread.start()
    thread.join(10)
    assert told == [error]
    assert "the thread unlucky has failed" in caplog.text
    assert type(error).__name__ in caplog.text


def test_a_thread_that_ends_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    thread = new_thread("done", lambda: None, failed=nobody_waits)
    thread.start()
    thread.join(10)
    assert not caplog.text
