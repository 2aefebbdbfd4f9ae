"""Files of a training program, written by one task and whole: ``rw.training.save``.

Every worker runs the same program. Where each of them writes ``model.pt``, they write one file at
the same time, and what is read later is a mixture of several.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..cluster.resolvers.launchers import environment_resolver
from ..cluster.resolvers.resolved import resolve
from ..core.files.new_path import new_path
from ..distribute.base.contexts import has_strategy
from ..distribute.program_cluster import program_cluster
from ..distribute.strategies.default import get_strategy
from ..distribute.strategies.strategy import Strategy


def save(
    path: str | Path, write: Callable[[Path], Any], *, strategy: Strategy | None = None
) -> bool:
    """Have the chief write a file or folder, which appears whole or not at all.

    ::

        rw.training.save("params.npz", lambda path: np.savez(path, **params))

    Every task may call this; on others than the chief it does nothing. What is there is replaced.

    Args:
        path: Path on this machine, in a folder that exists.
        write: Writes to the path it gets as its argument: beside ``path``, with the same ending.
        strategy: Strategy of the program; None: that of the scope this is called in, else the one
            that follows from this process's place in the cluster.

    Returns:
        Whether this task has written it.

    Raises:
        ValueError: ``path`` is a URL.
        FileNotFoundError: When ``write`` returned, nothing was at the path that it was given.
        OSError: It cannot be written.
    """
    if "://" in str(path):
        raise ValueError(f"{path} is no path of this machine; save to one, and copy it")
    if not writes_here(strategy):
        return False
    with new_path(Path(path), overwrite=True) as temporary:
        write(temporary)
        if not temporary.exists():
            raise FileNotFoundError(
                f"the function that was to write {path} returned, and nothing is at the path that "
                "it was given; it has to write to that path, and to wait for a writer that goes on "
                "in the background (an Orbax checkpointer's wait_until_finished(), or `with`)"
            )
    return True


def writes_here(strategy: Strategy | None = None) -> bool:
    """Return whether this task is the one that writes files of the program.

    Args:
        strategy: Strategy of the program; None: as in :func:`save`.
    """
    if strategy is None and has_strategy():
        strategy = get_strategy()
    if strategy is not None:
        return strategy.should_save
    runtime = program_cluster()
    task = runtime.task if runtime is not None else resolve(environment_resolver())
    return task.is_chief
