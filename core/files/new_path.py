"""Files and folders that appear whole or not at all, and replace others only if that is wanted."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from .temporary import remove_tree


@contextlib.contextmanager
def new_path(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Lend a path beside ``target`` to write to, which becomes ``target`` when the block has ended.

    Its name ends as the target's does: many libraries choose a format by that.

    Args:
        target: A file or a folder, as the block makes it.
        overwrite: Whether what is there is replaced.

    Raises:
        FileExistsError: Something is there, and is not to be replaced.
        OSError: The file system refused.
    """
    if target.exists() and not overwrite:
        raise FileExistsError(target)
    temporary = target.with_name(f".tmp-{secrets.token_hex(8)}-{target.name}")
    try:
        yield temporary
        if temporary.is_dir():
            _put_folder(temporary, target, overwrite=overwrite)
        else:
            _put_file(temporary, target, overwrite=overwrite)
    finally:
        _remove(temporary)


def _put_file(temporary: Path, target: Path, *, overwrite: bool) -> None:
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    if overwrite:
        if target.is_dir():
            remove_tree(target)
        temporary.replace(target)
        return
    os.link(temporary, target)  # unlike a rename it fails if another process was faster


def _put_folder(temporary: Path, target: Path, *, overwrite: bool) -> None:
    before = temporary.with_name(f"{temporary.name}.before")
    if overwrite and target.exists():
        target.replace(before)
    try:
        temporary.rename(target)  # fails over a folder that has something in it
    finally:
        _remove(before)


def _remove(path: Path) -> None:
    if path.is_dir():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
