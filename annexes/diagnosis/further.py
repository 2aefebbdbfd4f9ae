"""Answers that other annexes bring, at the point ``task_answers``."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ...core import annexes
from ...core.settings import Settings


@cache
def further_answers() -> Mapping[str, Callable[[str, Settings, int], dict[str, Any]]]:
    """Return the answers of other annexes, by the kind of the question."""
    modules = list(annexes.at("task_answers"))
    return {kind: answer for module in modules for kind, answer in module.ANSWERS.items()}
