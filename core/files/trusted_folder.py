"""Folders of this user: which there are, and whether another could have planted one."""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from ..settings import read_environment

# -- Whether another user could have planted a folder, or could put another in its place -------
# A folder on this machine is trusted if it and those above it belong to us or to root, and nobody
# else may write to them, nor a group that has others in it; in a sticky folder such as ``/tmp``
# nobody can replace what is another's. What is mounted (a volume of Kubernetes or Docker, a
# network share) was set up by whoever administers the machine, often with mode 0777 or an owner of
# its own: a mount point is trusted as it is, and within it its owner as well.
#
# For folders of which code is loaded that holds in a pod of Kubernetes alone. There the kubelet
# has mounted a volume for the containers of this pod, the folder that all pods' volumes lie in is
# closed to the node's users, and an emptyDir has mode 0777 without the sticky bit. On any other
# machine a mounted folder that all may write to is one that other users do write to.


_IN_POD = "KUBERNETES_SERVICE_HOST"  # which the kubelet sets for every container
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnsafeFolderError(OSError):
    """The error of a folder that another user owns or can write to."""


def check_way(folder: Path) -> Path:
    """Check that nobody else can put another folder in this one's place; returns its real path.

    Raises:
        UnsafeFolderError: A folder above it, or a link on the way to it, is not safe.
        OSError: It cannot be looked at.
    """
    for link in _links_on_the_way(folder):
        check_owner(link, link.lstat(), trust_root=True)
    real = folder.parent.resolve() / folder.name
    volume, mounted = _volume_of(real.parent) if read_environment(_IN_POD) else (None, ())
    for parent in real.parents:
        if parent == volume:
            break
        _check_parent(parent, _OTHERS_WRITE, mounted)
    return real


def check_private(folder: Path) -> Path:
    """Check that only we can have made or changed a folder; returns its real path.

    Args:
        folder: Absolute; exists.

    Raises:
        UnsafeFolderError: It is another user's, a link, others may look into it or write to it, or
            could put another in its place.
        OSError: It cannot be looked at.
    """
    real = check_way(folder)
    status = real.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeFolderError(f"{real} is no folder of its own (a link or a file)")
    check_owner(real, status)
    if status.st_mode & 0o077:
        raise UnsafeFolderError(
            f"{real} has mode {stat.S_IMODE(status.st_mode):o}, not 700: others may have written "
            "to it (remove it; it is made again)"
        )
    return real


def check_shared(folder: Path) -> None:
    """Check a folder that a group or the containers of a pod may share; it exists.

    Raises:
        UnsafeFolderError: Another user could have planted it, or anybody may write to it.
        OSError: It cannot be looked at.
    """
    for link in _links_on_the_way(folder.absolute()):
        check_owner(link, link.lstat(), trust_root=True)
    real = folder.resolve()
    volume, mounted = _volume_of(real)
    if real == volume:
        return
    status = real.stat()
    check_owner(real, status, trust_root=True, trusted=mounted)
    if status.st_mode & stat.S_IWOTH:
        raise UnsafeFolderError(f"anybody may write to {real} (chmod o-w {real})")
    for parent in real.parents:
        if parent == volume:
            return
        _check_parent(parent, stat.S_IWOTH, mounted)


def check_owner(
    path: Path, status: os.stat_result, *, trust_root: bool = False, trusted: tuple[int, ...] = ()
) -> None:
    """Check that a file or folder is ours.

    Raises:
        UnsafeFolderError: It is another user's.
    """
    mine = {os.geteuid(), *trusted} | ({0} if trust_root else set())
    if status.st_uid not in mine:
        raise UnsafeFolderError(f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}")


def _volume_of(path: Path) -> tuple[Path | None, tuple[int, ...]]:
    """Find the mount point that a real path is below, and its owner; nothing for the root's."""
    volume = next(above for above in (path, *path.parents) if above.is_mount())
    if volume == Path(volume.anchor):
        return None, ()
    return volume, (volume.stat().st_uid,)


def _check_parent(parent: Path, others: int, trusted: tuple[int, ...] = ()) -> None:
    status = parent.lstat()
    check_owner(parent, status, trust_root=True, trusted=trusted)
    who = status.st_mode & others
    if status.st_mode & stat.S_ISVTX or not who:
        return
    if who & stat.S_IWOTH:
        raise UnsafeFolderError(
            f"others may write to {parent} (chmod o-w {parent}, or chmod +t where users share it)"
        )
    if not _is_our_own(status.st_gid):
        raise UnsafeFolderError(
            f"others may write to {parent}: all in its group, {_group_name(status.st_gid)} "
            f"(chmod g-w {parent})"
        )


def _is_our_own(gid: int) -> bool:
    """Return whether a group has nobody but us: many systems give each user one, of the user's
    name.
    """
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _links_on_the_way(path: Path) -> Iterator[Path]:
    for part in (path, *path.parents):
        if part.is_symlink():
            yield part


# -- The folder of a user for caches, as the XDG Base Directory Specification names it ----------
# The system does not clean it, unlike ``/tmp``. A user may have none: containers often run with a
# user id that has no home.
#
# Source: https://specifications.freedesktop.org/basedir-spec/latest/


def cache_folder() -> Path | None:
    """Find ``ropewalk`` in the user's cache folder, which may not be there yet; None: no home."""
    if chosen := read_environment("XDG_CACHE_HOME"):
        return Path(chosen) / "ropewalk"
    try:
        return Path.home() / ".cache" / "ropewalk"
    except RuntimeError:  # no HOME, and the system does not know the user
        return None
