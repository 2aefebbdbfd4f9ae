"""What a kubelet gives a container beside its command: volumes with their modes, a user, a root
file system that is read-only.

:func:`mounts_of` says it of a pod's spec; this file, run as a script in a mount namespace of its
own, makes it so and becomes the command.

Source: ``pkg/volume/{emptydir/empty_dir,util/atomic_writer,volume_linux}.go`` of Kubernetes 1.36.
An emptyDir is 0777 without the sticky bit, whatever is mounted over a tmpfs (Secrets, projected
volumes, ``medium: Memory``) 1777. ``fsGroup`` adds a group, setgid and the group's rights.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Files = Mapping[str, bytes]
_OWN = ("app", "checkpoints", "kernels", "proc", "run", "tmp")  # not the machine's
_SET_PDEATHSIG = 1
_DATA = "..2026_11_20_10_00_00.1"


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume in a container.

    Attributes:
        path: Where.
        mode: Mode of its folder, which is root's.
        group: Group of the folder and of what is in it.
        source: A folder that is mounted there; empty: a file system of its own.
        files: Text by name, as the kubelet lays out Secrets: behind links.
        file_mode: Mode of the files.
        read_only: Whether it is.
    """

    path: str
    mode: int = 0o755
    group: int = 0
    source: str = ""
    files: dict[str, str] = field(default_factory=dict)
    file_mode: int = 0o644
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A container's view of its machine.

    Attributes:
        root: An empty folder, which becomes its root.
        hosts: The file that is its ``/etc/hosts``.
        image: The folder that is ``/app`` in it.
        kernels: Compiled kernels, as an image has them; empty: none.
        folder: Its working folder.
        mounts: Its volumes.
        user: Number of its user.
        group: Number of its group.
        fs_group: Further group; 0: none.
    """

    root: str
    hosts: str
    image: str
    kernels: str
    folder: str
    mounts: tuple[Mount, ...]
    user: int
    group: int
    fs_group: int

    def as_json(self) -> str:
        """For the script."""
        return json.dumps(asdict(self))


def mounts_of(
    spec: Mapping[str, Any], *, files: Mapping[str, Files], claims: Mapping[str, Path]
) -> Iterator[Mount]:
    """The volumes of a pod's only container.

    Args:
        spec: Spec of the pod.
        files: Content of Secrets and ConfigMaps by name.
        claims: Folders of claims by name, which get the modes of a fresh volume.
    """
    group = spec.get("securityContext", {}).get("fsGroup", 0)
    volumes = {each["name"]: each for each in spec["volumes"]}
    [container] = spec["containers"]
    for mount in container["volumeMounts"]:
        where = {"path": mount["mountPath"], "group": group}
        match volumes[mount["name"]]:
            case {"emptyDir": empty}:
                sticky = 0o1000 if empty.get("medium") == "Memory" else 0
                yield Mount(**where, mode=_shared(0o777, group) | sticky)
            case {"persistentVolumeClaim": {"claimName": claim}}:
                os.chown(claims[claim], 0, group)
                claims[claim].chmod(_shared(0o755, group))
                yield Mount(**where, source=str(claims[claim]))
            case {"secret": {"secretName": name} as how}:
                yield _written(where, 0o1777, files[name], how)
            case {"configMap": {"name": name} as how}:
                yield _written(where, 0o777, files[name], how)
            case {"projected": {"sources": sources} as how}:
                yield _written(where, 0o1777, _projected(sources, files), how)
            case other:
                raise NotImplementedError(other)


def _shared(mode: int, group: int) -> int:
    return mode | 0o2770 if group else mode


def _written(where: Any, mode: int, files: Files, how: Mapping[str, Any]) -> Mount:
    given = int(how.get("defaultMode", 0o644))
    return Mount(
        **where,
        mode=_shared(mode, where["group"]),
        files={name: content.decode("latin-1") for name, content in files.items()},
        file_mode=given | 0o440 if where["group"] else given,
        read_only=True,
    )


def _projected(sources: list[dict[str, Any]], files: Mapping[str, Files]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in sources:
        match each:
            case {"configMap": {"name": name}} | {"secret": {"name": name}}:
                found |= files[name]
            case {"serviceAccountToken": {"path": path}}:
                found[path] = b"token"
            case {"downwardAPI": {"items": items}}:
                found |= {item["path"]: b"train" for item in items}
    return found


# -- the script ------------------------------------------------------------------------------------


def enter(sandbox: Mapping[str, Any], name: str) -> None:
    """Make it so for this process, which has a mount namespace of its own."""
    root = sandbox["root"]
    _mount("-t", "tmpfs", "-o", "mode=0755", "none", root)
    for entry in os.scandir("/"):
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), root + entry.path)
        elif entry.is_dir() and entry.name not in _OWN and entry.stat().st_mode & 0o001:
            _bind(entry.path, root + entry.path, read_only=True)
    for python in {sys.prefix, sys.base_prefix}:  # which may be in a home that is closed to others
        if not os.path.exists(root + python):
            _bind(python, root + python, read_only=True)
    os.mkdir(f"{root}/proc")
    _mount("-t", "proc", "none", f"{root}/proc")
    _mount("--bind", sandbox["hosts"], f"{root}/etc/hosts")
    _bind(sandbox["image"], f"{root}/app", read_only=True)
    if sandbox["kernels"]:
        _bind(sandbox["kernels"], f"{root}/kernels", read_only=True)
    for mount in sandbox["mounts"]:
        _mount_volume(root, Mount(**mount))
    _mount("-o", "remount,ro", root)
    socket.sethostname(name)
    os.chroot(root)
    os.chdir(sandbox["folder"])
    os.setgroups([sandbox["fs_group"]] if sandbox["fs_group"] else [])
    os.setgid(sandbox["group"])
    os.setuid(sandbox["user"])
    # Which another user makes it forget: it ends, and all below it, when its parent does.
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _mount_volume(root: str, mount: Mount) -> None:
    at = root + mount.path
    if mount.source:
        _bind(mount.source, at, read_only=mount.read_only)
        return
    os.makedirs(at, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"mode={mount.mode:o},gid={mount.group}", "none", at)
    if mount.files:
        _write(Path(at), mount)
    if mount.read_only:
        _mount("-o", "remount,ro", at)


def _write(at: Path, mount: Mount) -> None:
    data = at / _DATA
    data.mkdir()
    for name, text in mount.files.items():
        (data / name).write_bytes(text.encode("latin-1"))
        os.chown(data / name, 0, mount.group)
        (data / name).chmod(mount.file_mode)
        (at / name).symlink_to(f"..data/{name}")
    os.chown(data, 0, mount.group)
    data.chmod(_shared(0o755, mount.group) & ~0o020)
    (at / "..data").symlink_to(_DATA)


def _bind(source: str, at: str, *, read_only: bool) -> None:
    os.makedirs(at, exist_ok=True)
    _mount("--rbind", source, at)
    if read_only:
        _mount("-o", "remount,bind,ro", at)


def _mount(*arguments: str) -> None:
    command = ["mount", *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    _, given, host_name, *command = sys.argv
    enter(json.loads(given), host_name)
    os.execv(command[0], command)  # noqa: S606 - the container's own command
