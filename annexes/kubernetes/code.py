"""Code without an image: a packed project in ConfigMaps, and the pods that find it there.

The package is what ``ropewalk submit`` sends, cut into parts that objects of Kubernetes can hold.
Its digest is part of the ConfigMaps' names and stands in every pod template, so a pod can run no
other code than the one it was made for; the container checks it
(``shipped_code.py``).
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ...core.errors import ConfigurationError, ProjectError, ProjectTooLargeError
from ...shipping import Package, pack
from ...shipping.package import DECLARED_IN, declared_requirements, largest, normalized
from ..jobfile.model import JobFile
from ..jobfile.pod_part import CODE_FOLDER, PARTS_FOLDER
from .names import CODE, document
from .shipped_code import CODE_DIGEST, CODE_PARTS, PART_NAME

Json = dict[str, Any]

PART_BYTES = 768 * 1024
"""Bytes of a package in one ConfigMap: an object may hold 1 MiB, and this leaves room for the
rest.
"""

MOST_PARTS = 8
"""ConfigMaps of one package: 6 MiB compressed. Every pod of the job reads all of them."""

_KEY_FILES = (".key", ".pem")
_KEY = b" PRIVATE KEY-----"
_CODE, _PARTS = "ropewalk-code", "ropewalk-packed"


@dataclass(frozen=True, slots=True)
class ShippedCode:
    """The code of a job.

    Attributes:
        job: Name of the job.
        package: The packed project.
        flags: Flags with which a command sends it again.
    """

    job: str
    package: Package
    flags: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the ConfigMaps, in the order of the parts."""
        count = -(-len(self.package.data) // PART_BYTES)
        return [f"{self.job}-code-{self.package.digest[:10]}-{n}" for n in range(count)]


def pack_code(
    folder: Path,
    job: JobFile,
    *,
    job_file: Path | None = None,
    image_has_requirements: bool = False,
) -> ShippedCode:
    """Pack the project of a job, without its job file.

    Pods have what that file says already, so another number in it is no other program.

    Args:
        folder: The project; the job's program is a file of it.
        job: The job.
        job_file: The file that says it; None: it was no file.
        image_has_requirements: Whether what the project declares is in the image; pods check it.

    Raises:
        ProjectTooLargeError: It does not fit; names the largest files.
        ProjectError: It cannot be packed, the program is not in it, or a private key is.
        ConfigurationError: It declares packages, of which nothing says that the image has them.
    """
    package = pack(folder, leave_out=_names_of(job_file, folder) if job_file else ())
    if job.program and job.program not in package.names:
        raise ProjectError(
            f"{job.program} is not in the project {folder.resolve()}, so pods would not find it: "
            "with --code `program` of the job file is relative to that folder (and .gitignore and "
            ".ropewalkignore leave files out)",
            path=folder,
        )
    _refuse_keys(folder, package)
    _check_size(folder, package)
    if not image_has_requirements:
        _refuse_requirements(folder, package)
    flags = ("--image-has-requirements",) if image_has_requirements else ()
    return ShippedCode(job.name, package, ("--code", str(folder), *flags))


def _names_of(file: Path, folder: Path) -> set[str]:
    """Find the names by which a file is found in a project, a link and what it leads to; none if
    not.
    """
    root = folder.resolve()
    places = {file.parent.resolve() / file.name, file.resolve()}
    return {str(place.relative_to(root)) for place in places if place.is_relative_to(root)}


def _refuse_keys(folder: Path, package: Package) -> None:
    """Refuse private keys: a ConfigMap is read by many who may not read a Secret."""
    for name in package.names:
        if name.endswith(_KEY_FILES) and _KEY in (folder / name).read_bytes():
            raise ProjectError(
                f"{name} of {folder.resolve()} is a private key, and who may look at ConfigMaps "
                "could read it: leave it out by a line in .ropewalkignore (pods have theirs from "
                "Secrets)",
                path=folder / name,
            )


def _check_size(folder: Path, package: Package) -> None:
    limit = MOST_PARTS * PART_BYTES
    if len(package.data) <= limit:
        return
    # Sizes as they are on disk; how well a file can be compressed is not known of one alone.
    sizes = {name: (folder / name).stat().st_size for name in package.names}
    shares = ", ".join(f"{name} ({size} bytes)" for name, size in largest(sizes))
    raise ProjectTooLargeError(
        f"{folder.resolve()} has {len(package.data)} bytes when it is compressed, over the limit "
        f"of {limit} for {MOST_PARTS} ConfigMaps; most are in: {shares}. Leave out what the "
        "program does not need by lines in .ropewalkignore, have it read data from a volume or a "
        "URL, or build an image with it",
        value=len(package.data),
        limit=limit,
    )


def _refuse_requirements(folder: Path, package: Package) -> None:
    texts = {
        name: (folder / name).read_text(errors="replace")
        for name in DECLARED_IN
        if name in package.names
    }
    declared = declared_requirements(texts)
    wanted = {name: file for name, file in declared.items() if name not in _of_ropewalk()}
    if not wanted:
        return
    names = ", ".join(wanted)
    raise ConfigurationError(
        f"{' and '.join(sorted(set(wanted.values())))} of {folder.resolve()}: the program needs "
        f"{names}, and --code sends code alone: pods that installed packages would need a registry "
        "each time one starts. Name an `image` that has them, and say so by "
        "--image-has-requirements; each container checks it before the program starts",
        field="image",
    )


def _of_ropewalk() -> set[str]:
    """List what every image with Ropewalk has: Ropewalk, and what it needs itself."""
    try:
        needed = metadata.requires("ropewalk") or []
    except metadata.PackageNotFoundError:  # a source tree that was not installed
        needed = []
    text = "\n".join(each for each in needed if ";" not in each)
    return {normalized("ropewalk"), *declared_requirements({"requirements.txt": text})}


def config_maps(job: JobFile, code: ShippedCode) -> list[Json]:
    """Make the ConfigMaps that hold the package, one for each part. They cannot be changed."""
    data = code.package.data
    parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    return [
        document(
            job, "v1", "ConfigMap", name, CODE, immutable=True,
            binaryData={f"{PART_NAME}{number:02}": base64.b64encode(part).decode()},
        )
        for number, (name, part) in enumerate(zip(code.names, parts, strict=True))
    ]  # fmt: skip


def with_code(template: Json, code: ShippedCode) -> Json:
    """Change a pod template so that its container unpacks the package, and runs the program in its
    folder.
    """
    spec = template["spec"]
    sources = [{"configMap": {"name": name}} for name in code.names]
    volumes: list[Json] = [
        {"name": _CODE, "emptyDir": {}},
        {"name": _PARTS, "projected": {"sources": sources}},
    ]
    containers = [_container(each, code) for each in spec["containers"]]
    changed = {**spec, "containers": containers, "volumes": [*spec["volumes"], *volumes]}
    return {**template, "spec": changed}


def _container(container: Mapping[str, Any], code: ShippedCode) -> Json:
    variables = {CODE_DIGEST: code.package.digest, CODE_PARTS: PARTS_FOLDER}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    mounts: list[Json] = [
        {"name": _CODE, "mountPath": CODE_FOLDER},
        {"name": _PARTS, "mountPath": PARTS_FOLDER, "readOnly": True},
    ]
    return {
        **container,
        # A Ropewalk that is too old to unpack finds no program here, and none of the image's.
        "workingDir": CODE_FOLDER,
        "env": [*container["env"], *env],
        "volumeMounts": [*container["volumeMounts"], *mounts],
    }
