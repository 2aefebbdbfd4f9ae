"""Lines that others can cause: some in a while, and how many were left out."""

import logging

import pytest

from ropewalk.core.process.log_records import RareLog

log = logging.getLogger("ropewalk.test")


def test_lines_beyond_those_of_a_period_are_counted_and_told_with_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    rare = RareLog(log, 10.0, most=2, now=lambda: now[0])
    with caplog.at_level("INFO", "ropewalk.test"):
        for number in range(5):
            rare.info("%d came", number)
        now[0] += 10
        rare.warning("%d came", 5)
    assert caplog.messages == ["0 came", "1 came", "5 came (3 more like this in the meantime)"]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING"]
