"""What tests of programs share."""

import sys

import pytest


@pytest.fixture
def own_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program that is run here does to the paths and arguments is undone afterwards."""
    for name in ("path", "argv"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
