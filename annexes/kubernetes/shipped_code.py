"""Code that came beside the image of a container: checked, unpacked and entered before the task.

A launcher mounts the parts of a package (``shipping/package.py``) and says its digest. It is
unpacked once in the life of a pod, into the container's working folder, and is the folder of the
program then: its modules are imported from there, and relative paths begin there.
"""

import logging
import os
from pathlib import Path

from ...core.errors import ConfigurationError, PackageError, StorageError
from ...core.settings import take_environment

log = logging.getLogger(__name__)

CODE_DIGEST = "ROPEWALK_CODE_DIGEST"
"""Variable with the digest of the package."""

CODE_PARTS = "ROPEWALK_CODE_PARTS"
"""Variable with the folder where the parts are."""

PART_NAME = "part-"
"""Begins the name of a part; behind it is its number, in two digits."""


def enter_shipped_code() -> None:
    """Unpack the code of this container, if it was given some, and make its folder the current one.

    Raises:
        PackageError: The parts are not the package that the digest names.
        StorageError: They cannot be read or unpacked.
        ConfigurationError: The image lacks packages that the project declares.
    """
    digest, parts = take_environment(CODE_DIGEST), take_environment(CODE_PARTS)
    if not digest:
        return
    from ...shipping import unpack  # what packs and unpacks costs others 30 ms of their start

    folder = Path.cwd() / digest[:12]
    if not folder.exists():  # an earlier container of this pod has unpacked it, whole
        unpack(_read(Path(parts), digest), digest, folder)
    os.chdir(folder)
    log.info("package %s is the program's folder: %s", digest[:12], folder)
    _check_image(folder)


def _read(parts: Path, digest: str) -> bytes:
    try:
        files = sorted(parts.glob(f"{PART_NAME}*"))
        data = b"".join(file.read_bytes() for file in files)
    except OSError as error:
        raise StorageError(
            f"package {digest[:12]} cannot be read: {error.strerror or error}", path=parts
        ) from error
    if not files:
        raise PackageError(f"package {digest[:12]}: {parts} has no part of it", package=digest[:12])
    return data


def _check_image(folder: Path) -> None:
    from importlib import metadata

    from ...shipping.package import DECLARED_IN, declared_requirements, missing_packages

    texts = {
        name: (folder / name).read_text(errors="replace")
        for name in DECLARED_IN
        if (folder / name).is_file()
    }
    installed = [package.metadata["Name"] for package in metadata.distributions()]
    if texts and (missing := missing_packages(declared_requirements(texts), installed)):
        raise ConfigurationError(
            f"the image lacks {', '.join(missing)}, which {' or '.join(texts)} of the program "
            "declares; build an image that has them, and name it by `image`"
        )
