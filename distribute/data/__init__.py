"""Datasets, and how they are divided: ``rw.data`` has the names that ``api/data.py`` lists."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...api.data import *  # noqa: F403
else:
    from ...core.public_face import shown

    __getattr__, __dir__ = shown(__name__, globals())
