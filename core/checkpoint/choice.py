"""Choice of the checkpoint to go on from: the newest one that is whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import CheckpointError
from .directory import CheckpointInfo


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of a choice among checkpoints.

    Attributes:
        chosen: Checkpoint to go on from; None: there is no checkpoint.
        damaged: Newer ones, the newest first, each with what is wrong with it.
    """

    chosen: CheckpointInfo | None = None
    damaged: tuple[tuple[CheckpointInfo, CheckpointError], ...] = ()


def choose_intact(
    found: Sequence[CheckpointInfo], verify: Callable[[CheckpointInfo], None]
) -> Choice:
    """Choose the newest checkpoint that ``verify`` accepts.

    Only damage leads to an older one: a file server that does not answer is the caller's error, or
    the job would go back for a moment's trouble.

    Args:
        found: Complete checkpoints, the oldest first.
        verify: Reads one, all of it; raises CheckpointError if it is damaged.

    Raises:
        CheckpointError: There are some, and all are damaged; has what is wrong with each.
    """
    damaged: list[tuple[CheckpointInfo, CheckpointError]] = []
    for info in reversed(found):
        try:
            verify(info)
        except CheckpointError as error:
            damaged.append((info, error))
        else:
            return Choice(info, tuple(damaged))
    if not damaged:
        return Choice()
    if len(damaged) == 1:
        only = damaged[0][1]
        raise CheckpointError(
            f"{only.message}. There is no other checkpoint; restore the file, or remove the "
            "checkpoint or name another model_dir to begin anew",
            **only.fields,
        )
    reasons = "; ".join(what.message for _, what in damaged)
    raise CheckpointError(
        f"all {len(damaged)} checkpoints are damaged: {reasons}. Restore one, or remove them or "
        "name another model_dir to begin anew",
        path=damaged[0][0].path,
    )
