"""Hooks that fewer programs use: a profile of a step now and then, and values at the end."""

import cProfile
import logging
import os
from collections.abc import Mapping
from typing import Any

from ...core.errors import ConfigurationError
from ...distribute.program_cluster import program_cluster
from ...distribute.variables.variable import Variable
from .hooks import RunningModel, SessionRunContext, SessionRunHook, SessionRunValues, value_of
from .timers import SecondOrStepTimer

log = logging.getLogger(__name__)


class ProfilerHook(SessionRunHook):
    """Writes what one step spends its time on, every so many steps: Python's ``cProfile``.

    TensorFlow's wrote a timeline of its graph. This is of the thread that calls model_fn: the input
    and replicas on further devices of the process are other threads, and what runs on a device is
    known to the framework's profiler (``jax.profiler``, ``torch.profiler``). The first step, which
    makes the model, is not profiled. ``python -m pstats profile-100.prof`` shows a file.

    Args:
        save_steps: Steps between two profiles.
        save_secs: Or seconds.
        output_dir: A folder of this machine; files are ``profile-<step>.prof``, in a cluster
            ``profile-<step>-<task>.prof``.
        show_dataflow: TensorFlow's; not used.
        show_memory: TensorFlow's; not used.

    Raises:
        ConfigurationError: Not exactly one of the intervals is given, or an URL.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,  # noqa: ARG002
        show_memory: bool = False,  # noqa: ARG002
    ) -> None:
        if (save_steps is None) == (save_secs is None):
            raise ConfigurationError(
                f"save_steps={save_steps} and save_secs={save_secs}: give one of them"
            )
        if "://" in output_dir:
            raise ConfigurationError(
                f"profiles go to a folder of this machine, not to output_dir={output_dir!r}"
            )
        self._output_dir = output_dir or "."
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._next_step: int | None = None
        self._profile: cProfile.Profile | None = None

    def before_run(self, run_context: SessionRunContext) -> None:  # noqa: ARG002
        """Begin, if this step is one."""
        if self._next_step is None or not self._timer.is_due(self._next_step):
            return
        profile = cProfile.Profile()
        try:
            profile.enable()
        except ValueError as error:  # there is one profiler at a time
            log.warning("step %d is not profiled: %s", self._next_step, error)
        else:
            self._profile = profile

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        """Write, if this step was one."""
        profile, self._profile = self._profile, None
        step = run_values.values["global_step"]
        if profile is not None:
            profile.disable()
            self._write(profile, step)
        if profile is not None or self._next_step is None:
            self._timer.note(step)
        self._next_step = step + 1

    def _write(self, profile: cProfile.Profile, step: int) -> None:
        runtime = program_cluster()
        task = runtime.task.task if runtime is not None and not runtime.alone else None
        name = f"profile-{step}" + (f"-{task.type}-{task.index}" if task is not None else "")
        path = os.path.join(self._output_dir, f"{name}.prof")
        try:
            os.makedirs(self._output_dir, exist_ok=True)
            profile.dump_stats(path)
        except OSError as error:
            log.warning("the profile of step %d was not written: %s", step, error)
            return
        log.info("Saving a profile of step %d into %s", step, path)


class FinalOpsHook(SessionRunHook):
    """Values at the end. As ``tf.compat.v1.train.FinalOpsHook``.

    Args:
        final_ops: Names, nested in dicts and lists: of variables, else of values of the last step;
            or variables; or functions that are given what is running.
        final_ops_feed_dict: TensorFlow's; not used.

    Attributes:
        final_ops_values: Values in the same structure; None before the end.
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: Any = None) -> None:  # noqa: ARG002
        self._final_ops = final_ops
        self._last: Mapping[str, Any] = {}
        self.final_ops_values: Any = None

    def renew(self, newer: SessionRunHook) -> None:
        """Take this batch's values."""
        if isinstance(newer, FinalOpsHook):
            self._final_ops = newer._final_ops

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        """Keep the values."""
        self._last = run_values.values

    def end(self, session: RunningModel) -> None:
        """Look.

        Raises:
            UnknownVariableError: There is neither a variable nor a value of a name.
        """
        self.final_ops_values = self._value(self._final_ops, session)

    def _value(self, wanted: Any, session: RunningModel) -> Any:
        if isinstance(wanted, str):
            if wanted in session.variables:
                return session.read(wanted)
            return value_of(wanted, self._last)
        if isinstance(wanted, Variable):
            return wanted.numpy()
        if isinstance(wanted, Mapping):
            return {key: self._value(part, session) for key, part in wanted.items()}
        if isinstance(wanted, list | tuple):
            return [self._value(part, session) for part in wanted]
        return wanted(session) if callable(wanted) else wanted
