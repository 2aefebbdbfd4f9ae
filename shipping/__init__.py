"""A project directory on its way from a laptop to the tasks of a cluster.

:func:`pack` makes a :class:`Package` of it, named by its digest; :func:`unpack` turns one into a
folder again and trusts nothing in it. Nothing here opens a socket, and nothing of a package is
executed.
"""

from .package import MAX_FILES, MAX_PACKAGE_BYTES, Package, PackageLimits
from .packing import pack
from .unpacking import unpack

__all__ = [
    "MAX_FILES",
    "MAX_PACKAGE_BYTES",
    "Package",
    "PackageLimits",
    "pack",
    "unpack",
]
