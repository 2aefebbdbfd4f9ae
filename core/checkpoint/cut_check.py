"""Whether a checkpoint is of one moment of all ps, by what each of them has written down."""

from collections.abc import Iterable

from .manifest import BlockRecord, CutRecord, Manifest


def pushes_of(manifest: Manifest) -> dict[str, int]:
    """Return the number of each worker's last push in a checkpoint of a cut; nothing if it is of
    none.
    """
    cut = manifest.cut
    if cut is None or not cut.shares:
        return {}
    return {task: pushes for task, (pushes, _) in sorted(cut.shares[0].items())}


def contradictions(manifest: Manifest) -> list[str]:
    """List contradictions in the records of a cut, for people; nothing if there are none.

    All shares have to have been told one number by each worker, and no block may have a push of
    that worker beyond its last one to that share.
    """
    cut = manifest.cut
    if cut is None:
        return []
    problems = [problem for share in range(len(cut.shares)) for problem in _of_share(cut, share)]
    for block in manifest.blocks:
        problems += _of_block(cut, block)
    return problems


def _of_share(cut: CutRecord, share: int) -> list[str]:
    first, marks = cut.shares[0], cut.shares[share]
    if marks.keys() != cut.workers.keys():
        return [
            f"share {share} has marks of {_listed(marks)}, the cut is of {_listed(cut.workers)}"
        ]
    return [
        f"{task} marked its push {first[task][0]} on share 0, and {marks[task][0]} on share {share}"
        for task in sorted(marks)
        if marks[task][0] != first[task][0]
    ]


def _of_block(cut: CutRecord, block: BlockRecord) -> list[str]:
    if block.ps >= len(cut.shares):
        return [f"there are values of share {block.ps}, and no marks of it"]
    problems = []
    for task, (generation, sequence) in sorted(block.applied.items()):
        if cut.workers.get(task) != generation:
            continue  # a task, or a life of it, that had ended
        _, last = cut.shares[block.ps][task]
        if sequence > last:
            problems.append(
                f"{', '.join(block.shards[:3])} of share {block.ps} has push {sequence} of {task}, "
                f"beyond its mark at {last}"
            )
    return problems


def _listed(tasks: Iterable[str]) -> str:
    return ", ".join(sorted(tasks)) or "no task"
