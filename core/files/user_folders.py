"""The folders of a user that the XDG Base Directory Specification names, for caches and for state.

Neither is cleaned by the system, unlike ``/tmp``. A user may have none: containers often run with a
user id that has no home.

Source: https://specifications.freedesktop.org/basedir-spec/latest/
"""

from pathlib import Path

from ..settings import read_environment


def cache_folder() -> Path | None:
    """Find ``ropewalk`` in the user's cache folder, which may not be there yet; None: no home."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, below_home: str) -> Path | None:
    if chosen := read_environment(variable):
        return Path(chosen) / "ropewalk"
    try:
        return Path.home() / below_home / "ropewalk"
    except RuntimeError:  # no HOME, and the system does not know the user
        return None
