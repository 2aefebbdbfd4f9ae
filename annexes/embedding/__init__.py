"""Embedding tables: ``rw.embedding`` has the names that ``api/embedding.py`` lists."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...api.embedding import *  # noqa: F403
else:
    from ...core.public_face import shown

    __getattr__, __dir__ = shown(__name__, globals())
