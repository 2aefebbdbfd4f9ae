"""Answers of a task to what it is asked: JSON, bounded, and nothing secret in it."""

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
from typing import Any

from ...core.errors import ConfigurationError
from ...core.process import events
from ...core.process.processes import memory_bytes
from ...core.setting_groups import IdentitySettings
from ...core.settings import Settings
from ...worker.process.surroundings import set_log_level
from .questions import MOST_ANSWER_BYTES
from .stacks import own_stacks, what_holds_up

log = logging.getLogger(__name__)

_PACKAGES = "ropewalk numpy numba grpcio protobuf ml_dtypes torch jax jaxlib tensorflow keras optax"
_USER_IN_URL = re.compile(r"//[^/@\s]+@")


def answer_to(kind: str, argument: str, settings: Settings) -> bytes:
    """Answer a question.

    Args:
        kind: Kind of the question.
        argument: A detail of it.
        settings: Settings of the task.

    Raises:
        ConfigurationError: It is not one that can be asked, or the detail is not valid.
    """
    if kind not in _ANSWERS:
        raise ConfigurationError(f"this task cannot be asked for {kind!r:.80}; is it older?")
    about = {"pid": os.getpid(), "host": socket.gethostname()}
    most = min(MOST_ANSWER_BYTES, settings.max_message_bytes // 2)
    text = json.dumps({**about, **_ANSWERS[kind](argument, settings, most)}).encode()
    if len(text) > most:
        raise ConfigurationError(f"the answer has {len(text)} bytes, and may have {most}")
    return text


def _stacks(_: str, settings: Settings, most: int) -> dict[str, Any]:  # noqa: ARG001
    stacks = own_stacks()
    threads = [asdict(stack) for stack in stacks]
    while len(threads) > 1 and len(json.dumps(threads)) > most // 2:
        threads.pop()
    return {"threads": threads, "held_up": what_holds_up(stacks)}


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
        "most_locked_bytes": resource.getrlimit(memory_locks)[0],
        "memory_bytes": memory_bytes(),
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "shm_free_bytes": _free("/dev/shm"),  # noqa: S108 - nothing is written there
        "model_dir_free_bytes": _free(settings.model_dir),
    }


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
    "events": _events,
    "log-level": _log_level,
    "report": _report,
    "stacks": _stacks,
    "surroundings": surroundings,
}
