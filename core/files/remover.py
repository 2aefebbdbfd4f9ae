"""Folders that are removed in the background.

What a program leaves behind may be large or not removable at all, and whoever has run it has better
things to do: a thread for each folder removes it. If it fails or hangs, nobody waits for it; at the
end of the process it just stops.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from ..process.threads import new_thread, nobody_waits
from .tree_removal import remove_tree

log = logging.getLogger(__name__)


def remove_later(
    path: Path,
    then: Callable[[], object] = lambda: None,
    remove: Callable[[Path], None] = remove_tree,
) -> threading.Event:
    """Remove a folder in the background; returns an event that is set when this is over.

    Args:
        path: Path of the folder. A missing one counts as removed.
        then: Called afterwards in the thread, even if something is left.
        remove: Removes a folder; tests replace it.
    """
    over = threading.Event()

    def work() -> None:
        try:
            _remove(path, remove)
        finally:
            then()
            over.set()

    new_thread("remover", work, failed=nobody_waits).start()
    return over


def _remove(path: Path, remove: Callable[[Path], None]) -> None:
    try:
        remove(path)
    except FileNotFoundError:
        return
    except OSError as error:
        what = f"{error.filename!r}: {error.strerror or error}"
        log.warning(
            "%s cannot be removed: %s; the next process of its kind tries again", path, what
        )
