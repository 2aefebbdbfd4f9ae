"""The digest of a store: equal for replicas that have the same, to the last bit."""

import hashlib
from typing import Any

from ropewalk.server.ps.push_marks import LogCopied
from ropewalk.server.ps.store import Store


def log_of(store: Store) -> LogCopied:
    """Which pushes of a store are complete."""
    with store._marks_lock:
        return store._marks.copied(store.contents)


def digest_of(store: Store) -> str:
    """Hexadecimal digest of all blocks, tables and marks. Nothing is pushed meanwhile."""
    digest = hashlib.blake2b(digest_size=16)
    for block in sorted(store.table.blocks(), key=lambda block: block.number):
        with block.lock:
            what = (
                block.number,
                [shard.key for shard in block.shards],
                block.rules,
                block.versions.tolist(),
                block.updates.tolist(),
                block.initialized.tolist(),
                sorted((str(task), mark) for task, mark in block.applied.items()),
                block.closures,
                sorted(block.slots),
            )
            digest.update(repr(what).encode())
            digest.update(block.value.tobytes())
            for name in sorted(block.slots):
                digest.update(block.slots[name].tobytes())
    tables: list[Any] = store.table.tables()
    for part in sorted(tables, key=lambda part: part.number):
        with part.lock:
            marks = sorted((str(task), mark) for task, mark in part.applied.items())
            counts = part.versions.tolist(), part.updates.tolist()
            of_table = (part.number, part.shards[0].key, counts, marks, part.closures)
            digest.update(repr((of_table, part.table.digest())).encode())
    log = log_of(store)
    pushes = sorted((str(task), mark) for task, mark in log.pushes.items())
    digest.update(repr((pushes, log.closures, log.global_step)).encode())
    return digest.hexdigest()
