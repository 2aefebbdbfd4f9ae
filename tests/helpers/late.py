"""Modules imported at their first use: every process of a run imports every module of tests."""

from typing import Any

import pytest


class Late:
    """A module; the test that uses it first imports it, and is skipped where it is missing.

    Args:
        name: The module's full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest asks everything in a module for these
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)
