"""What has failed in a run, with the first line of why, for ``tools/run_tests.py``."""

import pytest


def keep(terminal: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write it into pytest's cache, unless there is none."""
    if getattr(config, "cache", None) is None:
        return
    # A test that fails and then fails to clean up failed for the first reason.
    reports = [each for kind in ("error", "failed") for each in terminal.getreports(kind)]
    config.cache.set("ropewalk/failures", {each.nodeid: _why(each) for each in reports})


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(getattr(crash, "message", report.longrepr)).strip().splitlines()
    return lines[0] if lines else ""
