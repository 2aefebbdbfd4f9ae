"""Whether an optimizer of Keras is called by a program or by what shares its weights."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOOP = "_ropewalk_loop"
"""Attribute of an optimizer: how it shares what it trains (``loops.Loop``); False: it shares
nothing.
"""

COMPILED = "_ropewalk_compiled"
"""Attribute of an optimizer: a model that ``fit`` trains was compiled with it."""

MADE_UNDER = "_ropewalk_made_under"
"""Attribute of a model or an optimizer: the strategy in whose scope it was made."""


class _Plain(threading.local):
    depth = 0


_plain = _Plain()


@contextmanager
def plainly() -> Iterator[None]:
    """Let optimizers do what Keras' code says, in this thread."""
    _plain.depth += 1
    try:
        yield
    finally:
        _plain.depth -= 1


def is_plain() -> bool:
    """Return whether optimizers do what Keras' code says."""
    return _plain.depth > 0
