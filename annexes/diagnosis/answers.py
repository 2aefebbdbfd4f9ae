"""Answers of a task to what it is asked: JSON, bounded, and nothing secret in it."""

import contextlib
import json
import logging
import os
import platform
import re
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...core.errors import ConfigurationError
from ...core.process import events
from ...core.process.processes import memory_bytes
from ...core.setting_groups import IdentitySettings
from ...core.settings import Settings
from ...worker.process.surroundings import set_log_level
from .further import further_answers
from .links import echo
from .questions import MOST_ANSWER_BYTES
from .stacks import own_stacks, what_holds_up, where_it_stands

log = logging.getLogger(__name__)

_PACKAGES = "ropewalk numpy numba grpcio protobuf ml_dtypes torch jax jaxlib tensorflow keras optax"
_THROTTLED = ("nr_periods", "nr_throttled")
_USER_IN_URL = re.compile(r"//[^/@\s]+@")
_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|$)", re.DOTALL)
_NAMES = r"(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|credentials?|signature)"
_NAMED_SECRET = re.compile(
    rf"""((?:\b[\w-]*{_NAMES}|authorization)\b\\*["']?\s*[=:]\s*\\*["']?(?:bearer\s|basic\s)?
    |--[\w-]*{_NAMES}\s+)  # quotes as JSON has them, also in JSON; or an option of a command
    (?!\d+[\s,}}\]])[^\s"'&,;)}}\\]+""",
    re.IGNORECASE | re.VERBOSE,
)


def answer_to(
    kind: str, argument: str, settings: Settings, more: Mapping[str, Any] | None = None
) -> bytes:
    """Answer a question.

    Args:
        kind: Kind of the question.
        argument: A detail of it.
        settings: Settings of the task.
        more: Answers that were found elsewhere, for the kind; None: nothing.

    Raises:
        ConfigurationError: It is not one that can be asked, or the detail is not valid.
    """
    asked = _ANSWERS.get(kind) or further_answers().get(kind)
    if asked is None:
        raise ConfigurationError(f"this task cannot be asked for {kind!r:.80}; is it older?")
    about = {"pid": os.getpid(), "host": socket.gethostname()}
    most = min(MOST_ANSWER_BYTES, settings.max_message_bytes // 2)
    answer = {**about, **asked(argument, settings, most), **(more or {})}
    text = json.dumps(answer).encode()
    if len(text) > most:
        raise ConfigurationError(f"the answer has {len(text)} bytes, and may have {most}")
    return text


def _stacks(_: str, settings: Settings, most: int) -> dict[str, Any]:  # noqa: ARG001
    stacks = own_stacks()
    threads = [asdict(stack) for stack in stacks]
    while len(threads) > 1 and len(json.dumps(threads)) > most // 2:
        threads.pop()
    return {"threads": threads, "held_up": what_holds_up(stacks) or where_it_stands(stacks)}


def _events(_: str, settings: Settings, most: int) -> dict[str, Any]:  # noqa: ARG001
    return {"events": events.lines(most // 4)}  # quotes of JSON in JSON take twice the bytes


def _log_level(level: str, settings: Settings, most: int) -> dict[str, Any]:  # noqa: ARG001
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigurationError(f"{level!r:.40} is no log level: DEBUG, INFO, WARNING or ERROR")
    before = set_log_level(level)
    log.warning("log lines are shown from %s on; it was %s", level, before)
    return {"before": before, "level": level}


def surroundings(_: str, settings: Settings, most: int = 0) -> dict[str, Any]:  # noqa: ARG001
    """Say what this process has: versions, limits, memory, room on disks, and its clock."""
    files, memory_locks = resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "clock": time.time(),
        "python": platform.python_version(),
        "packages": _versions(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "open_files": len(os.listdir("/proc/self/fd")),
        "most_files": resource.getrlimit(files)[0],
        "locked_bytes": _status_bytes("VmLck"),
        "most_locked_bytes": resource.getrlimit(memory_locks)[0],
        "cgroup": _cgroup(),
        "memory_bytes": memory_bytes(),
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "shm_free_bytes": _free("/dev/shm"),  # noqa: S108 - nothing is written there
        "model_dir_free_bytes": _free(settings.model_dir),
    }


def _status_bytes(name: str) -> int:
    """Read a size of this process that the kernel counts in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else 0


def _cgroup(folder: Path = Path("/sys/fs/cgroup")) -> dict[str, int]:
    """Read what the cgroup of this container counts: periods in which it had to wait for its share
    of the processors, and its processes; what is not there is left out.

    Args:
        folder: Folder of cgroups; those of version 1 have one for each subject.
    """
    counts = dict[str, int]()
    for place in (folder, folder / "cpu", folder / "pids"):
        with contextlib.suppress(OSError):
            words = (place / "cpu.stat").read_text().split()
            pairs = dict(zip(words[::2], words[1::2], strict=False))
            counts |= {name: int(pairs[name]) for name in _THROTTLED if name in pairs}
        for name in ("pids.current", "pids.max"):
            with contextlib.suppress(OSError, ValueError):  # "max": no limit
                counts[name] = int((place / name).read_text())
    return counts


def _free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free if path else None
    except OSError:
        return None  # of an object store, or not there


def _versions() -> dict[str, str]:
    found = dict[str, str]()
    for name in _PACKAGES.split():
        if name.partition(".")[0] in sys.modules or name in ("ropewalk", "grpcio", "protobuf"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
    return found


def public_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that are not the defaults, without those that say who one is."""
    own = IdentitySettings.fields()
    return {
        name: "(set)" if name in own else without_user(value)
        for name, value in settings.model_dump(mode="json", exclude_defaults=True).items()
    }


def without_secrets(text: str) -> str:
    """Return a text without what looks like a secret: users of URLs, keys, and what is given to a
    name such as ``token`` or ``AWS_SECRET_ACCESS_KEY``.
    """
    text = _KEY.sub("…", _USER_IN_URL.sub("//…@", text))
    return _NAMED_SECRET.sub(r"\1…", text)


def without_user(value: Any) -> Any:
    """Return a value without the user and password that a URL in it may have."""
    return _USER_IN_URL.sub("//…@", value) if isinstance(value, str) else value


def _report(_: str, settings: Settings, most: int) -> dict[str, Any]:
    return {
        "settings": public_settings(settings),
        "surroundings": surroundings(_, settings),
        **_events(_, settings, most),
        **_stacks(_, settings, most),
    }


_ANSWERS: Mapping[str, Callable[[str, Settings, int], dict[str, Any]]] = {
    "echo": lambda size, settings, _: echo(size, settings),
    "events": _events,
    "links": lambda *_: {},  # a task that has joined measures them
    "log-level": _log_level,
    "report": _report,
    "stacks": _stacks,
    "surroundings": surroundings,
}
