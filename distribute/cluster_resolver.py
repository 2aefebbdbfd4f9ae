"""``ropewalk.distribute.cluster_resolver``: the names that ``api/cluster_resolver.py`` lists."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..api.cluster_resolver import *  # noqa: F403
else:
    from ..core.public_face import shown

    __getattr__, __dir__ = shown(__name__, globals())
