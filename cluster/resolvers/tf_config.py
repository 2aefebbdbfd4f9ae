"""TFConfigClusterResolver: the cluster in the environment variable TF_CONFIG.

This module and ``core/settings.py`` are the only readers of the environment. The variable is read
again at every call of the resolver, as TensorFlow does, so a test or a notebook may change it; a
snapshot reads it once.
"""

import json
import os
from collections.abc import Mapping
from copy import copy
from typing import Any

from ...core.errors import TFConfigError
from ...core.outside_text import read_json
from ...core.task import MAX_TASK_INDEX, TaskId
from ..spec import ClusterSpec
from .resolver import ClusterResolver, format_master_url

TF_CONFIG = "TF_CONFIG"


def write_tf_config(cluster: Mapping[str, object], task: TaskId, *, key: str = "cluster") -> str:
    """Write TF_CONFIG of a task, in one line.

    Args:
        cluster: Addresses by role: a list, or for a sparse cluster by index.
        task: The task.
        key: ``"sparseCluster"`` where it is one.
    """
    return json.dumps({key: cluster, "task": {"type": task.type, "index": task.index}})


def read_tf_config() -> dict[str, Any]:
    """Read TF_CONFIG as a dictionary; empty if it is absent or empty.

    Raises:
        TFConfigError: It is not a JSON object, with the position of the error; or one that nobody
            has written by hand, such as thousands of brackets.
    """
    text = os.environ.get(TF_CONFIG, "")
    if not text.strip():
        return {}
    try:
        config = read_json(text)
    except json.JSONDecodeError as error:
        shown = text if len(text) <= 200 else text[:200] + "…"
        raise TFConfigError(
            f"TF_CONFIG is not JSON: {error.msg} at line {error.lineno}, column {error.colno} of "
            f"{shown!r}. In YAML, quote the whole value",
            line=error.lineno,
            column=error.colno,
        ) from error
    except ValueError as error:
        raise TFConfigError(f"TF_CONFIG cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise TFConfigError(f"TF_CONFIG must be a JSON object, got {type(config).__name__}")
    return config


def cluster_of(config: dict[str, Any]) -> ClusterSpec:
    """Read the cluster in a parsed TF_CONFIG.

    Raises:
        TFConfigError: It is not a valid cluster.
    """
    key, jobs = _jobs_of(config)
    task = config.get("task") or {}
    if is_dynamic(config) and isinstance(task, dict) and task.get("type") == "ps":
        alone = jobs.get("ps")
        if isinstance(alone, list) and len(alone) == 1:
            jobs = {**jobs, "ps": {_index(task.get("index", 0)): alone[0]}}
    try:
        return ClusterSpec(jobs)
    except (TypeError, ValueError) as error:
        raise TFConfigError(f"TF_CONFIG: {key!r}: {error}") from error


def is_dynamic(config: dict[str, Any]) -> bool:
    """Return whether a parsed TF_CONFIG is of the dynamic kind, TFJob's ``enableDynamicWorker``.

    Its cluster is under ``sparseCluster``, or has a job given as an object. A ps then sees only
    itself in a list, whose position is not its index.

    Raises:
        TFConfigError: It is no cluster.
    """
    key, jobs = _jobs_of(config)
    if "sparseCluster" in config and key == "sparseCluster":
        return True
    return any(isinstance(tasks, dict) for tasks in jobs.values())


def _jobs_of(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    key = "cluster" if "cluster" in config else "sparseCluster"
    jobs = config.get(key) or {}
    if not isinstance(jobs, dict):
        raise TFConfigError(f"TF_CONFIG: {key!r} must be an object, got {type(jobs).__name__}")
    return key, jobs


def task_of(config: dict[str, Any]) -> tuple[str | None, int | None]:
    """Read (type, index) in a parsed TF_CONFIG; None where absent. The index may be a string of
    digits.

    Raises:
        TFConfigError: They are of the wrong type.
    """
    task = config.get("task") or {}
    if not isinstance(task, dict):
        raise TFConfigError(f"TF_CONFIG: 'task' must be an object, got {type(task).__name__}")
    kind = str(task["type"]) if task.get("type") is not None else None
    index = _index(task["index"]) if task.get("index") is not None else None
    return kind, index


def _index(value: object) -> int:
    try:
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise TypeError(value)
        index = int(value)
    except (TypeError, ValueError):
        raise TFConfigError(
            f"TF_CONFIG: task.index must be an integer or a string of digits, got {value!r:.200}"
        ) from None
    if index < 0:
        raise TFConfigError(f"TF_CONFIG: task.index must not be negative, got {index}")
    if index > MAX_TASK_INDEX:
        raise TFConfigError(
            f"TF_CONFIG: task.index must be at most {MAX_TASK_INDEX}, got {index!r:.200}"
        )
    return index


class TFConfigClusterResolver(ClusterResolver):
    """A resolver like ``tf.distribute.cluster_resolver.TFConfigClusterResolver``.

    Values from the constructor or a setter override TF_CONFIG; arguments of :meth:`master` override
    both. Each call and property reads TF_CONFIG anew, as TensorFlow's, and raises
    :class:`TFConfigError` if it is malformed; :meth:`snapshot` reads it once.
    """

    _asks_nobody = True

    _config: dict[str, Any] | None = None  # of a snapshot

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment

    def cluster_spec(self) -> ClusterSpec:
        """Read the cluster; empty without TF_CONFIG."""
        return cluster_of(self._read())

    @property
    def dynamic(self) -> bool:
        """Whether TF_CONFIG lists only a part of the cluster: see :func:`is_dynamic`."""
        return is_dynamic(self._read())

    @property
    def source(self) -> str:
        """``"TF_CONFIG"``."""
        return TF_CONFIG

    @property
    def from_launcher(self) -> bool:
        """Always."""
        return True

    def snapshot(self) -> "TFConfigClusterResolver":
        """Make a resolver of TF_CONFIG as it is now."""
        fixed = copy(self)
        fixed._config = self._read()
        return fixed

    def _read(self) -> dict[str, Any]:
        return read_tf_config() if self._config is None else self._config

    def _found(self, name: str) -> Any:
        config = self._read()
        if name == "rpc_layer":
            return config.get("rpc_layer")
        return task_of(config)[0 if name == "task_type" else 1]

    @property
    def environment(self) -> str:
        """Environment that the constructor was given; TF_CONFIG's own is not used, as in
        TensorFlow.
        """
        return self._environment or ""

    def _master(self, kind: str | None, index: int | None, layer: str | None) -> str:
        """Return ``session_master`` as it is, ``""`` for a cluster of at most one task, else the
        address.

        Raises:
            ValueError: The cluster has no such task.
        """
        if self._config is None:
            return self.snapshot().master(kind, index, layer)
        if self._config.get("session_master") is not None:
            return str(self._config["session_master"])
        spec = self.cluster_spec()
        if not spec or (len(spec.jobs) == 1 and spec.task_indices(spec.jobs[0]) == [0]):
            return ""  # a job that names task 1 alone has a task 0 as well
        kind = kind if kind is not None else self.task_type
        index = index if index is not None else self.task_id
        if kind is None or index is None:
            raise ValueError("TF_CONFIG has a cluster but no task type and index; give both")
        layer = layer if layer is not None else self.rpc_layer
        return format_master_url(spec.task_address(kind, index), layer)
