"""The hooks of ``tf.compat.v1.train`` that programs use: stop, log, count, watch, summarize."""

import cProfile
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.errors import ConfigurationError, NanLossDuringTrainingError
from ...distribute.program_cluster import program_cluster
from ...distribute.variables.variable import Variable
from ...training.progress import report
from .hooks import (
    RunningModel,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    value_of,
)
from .metrics import is_scalar, to_float, to_numpy
from .recording import ScalarWriter, summary_writer

log = logging.getLogger(__name__)


class StopAtStepHook(SessionRunHook):
    """Ends a training.

    Args:
        num_steps: Number of steps of the job, from its beginning here on, after which it ends.
        last_step: Global step at which it ends.

    Raises:
        ConfigurationError: Neither or both are given, or not a positive number.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ConfigurationError(
                f"num_steps={num_steps} and last_step={last_step}: give one of them"
            )
        if (num_steps if num_steps is not None else last_step or 0) <= 0:
            raise ConfigurationError(f"num_steps={num_steps}, last_step={last_step}: not positive")
        self._num_steps, self._last_step = num_steps, last_step

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Count from here."""
        if self._last_step is None:
            self._last_step = run_context.session.global_step + (self._num_steps or 0)
        return None

    def after_create_session(self, session: RunningModel, coord: Any) -> None:  # noqa: ARG002
        """Count from here, if model_fn gave this hook: one step was made."""
        if self._last_step is None:
            self._last_step = session.global_step - 1 + (self._num_steps or 0)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stop when it is reached."""
        if run_values.values["global_step"] >= (self._last_step or 0):
            run_context.request_stop()


class NanTensorHook(SessionRunHook):
    """Watches a number.

    Args:
        loss_tensor: Name of the number.
        fail_on_nan_loss: Raise if it is NaN or infinite; False: stop the training.
    """

    def __init__(self, loss_tensor: Any = "loss", fail_on_nan_loss: bool = True) -> None:
        self._name = loss_tensor if isinstance(loss_tensor, str) else "loss"
        self._fail = fail_on_nan_loss

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Look at it.

        Raises:
            NanLossDuringTrainingError: It is no finite number.
        """
        value = to_float(value_of(self._name, run_values.values))
        if math.isfinite(value):
            return
        step = run_values.values["global_step"]
        text = f"Model diverged with loss = {value:g} at global step {step}"
        if self._fail:
            raise NanLossDuringTrainingError(
                f"{text}. Lower the learning rate, clip gradients, or look at the batch; a job "
                "that is started again resumes from its last checkpoint",
                global_step=step,
            )
        log.warning("%s; stopping", text)
        run_context.request_stop()


class LoggingTensorHook(SessionRunHook):
    """Logs values now and then.

    Args:
        tensors: Names, or a dict of names, or of values that model_fn gives with the hook.
        every_n_iter: Steps of this worker between two lines.
        every_n_secs: Seconds between two lines.
        at_end: Only at the end.
        formatter: Makes the line of a dict of values.

    Raises:
        ConfigurationError: Not exactly one of the intervals is given.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Sequence[str],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        if not at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ConfigurationError("either at_end or one of every_n_iter and every_n_secs")
        self._tensors = (
            dict(tensors) if isinstance(tensors, Mapping) else {name: name for name in tensors}
        )
        self._timer = SecondOrStepTimer(every_n_secs, every_n_iter)
        self._regular = every_n_iter is not None or every_n_secs is not None
        self._at_end, self._formatter = at_end, formatter
        self._iteration = 0
        self._last: dict[str, Any] = {}

    def renew(self, newer: SessionRunHook) -> None:
        """Take this batch's values."""
        if isinstance(newer, LoggingTensorHook):
            self._tensors = newer._tensors

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        """Log if it is time."""
        due = self._regular and self._timer.is_due(self._iteration)
        if due or self._at_end:
            self._last = {
                tag: value_of(wanted, run_values.values) if isinstance(wanted, str) else wanted
                for tag, wanted in self._tensors.items()
            }
        if due:
            since = self._timer.note(self._iteration)
            self._log(f" ({since[0]:.3f} sec)" if since else "")
        self._iteration += 1

    def end(self, session: RunningModel) -> None:  # noqa: ARG002
        """Log the last values, if that was asked for."""
        if self._at_end and self._last:
            self._log("")

    def _log(self, behind: str) -> None:
        values = {tag: to_numpy(value) for tag, value in self._last.items()}
        if self._formatter is not None:
            log.info("%s", self._formatter(values))
            return
        log.info("%s%s", ", ".join(f"{tag} = {value}" for tag, value in values.items()), behind)


class StepCounterHook(SessionRunHook):
    """Logs and summarizes ``global_step/sec``.

    Args:
        every_n_steps: Steps between two counts.
        every_n_secs: Or seconds.
        output_dir: Folder of event files.
        summary_writer: Or this.
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: ScalarWriter | None = None,
    ) -> None:
        self._timer = SecondOrStepTimer(
            every_n_secs, every_n_steps if every_n_secs is None else None
        )
        self._output_dir, self._writer = output_dir, summary_writer

    def begin(self) -> None:
        """Open the file."""
        if self._writer is None and self._output_dir:
            self._writer = summary_writer(self._output_dir)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        """Count."""
        step = run_values.values["global_step"]
        if not self._timer.is_due(step):
            return
        since = self._timer.note(step)
        if since is None or since[0] <= 0:
            return
        rate = since[1] / since[0]
        if self._writer is not None:
            self._writer.add_scalar("global_step/sec", rate, step)
        log.info("global_step/sec: %g", rate)

    def end(self, session: RunningModel) -> None:  # noqa: ARG002
        """Have what was written be there."""
        if self._writer is not None:
            self._writer.flush()


class SummarySaverHook(SessionRunHook):
    """Writes numbers of the steps to an event file.

    Args:
        save_steps: Steps between two times.
        save_secs: Or seconds.
        output_dir: Folder of event files.
        summary_writer: Or this.
        summary_op: Names of the numbers; None: the loss, and what :func:`record` was given.

    Raises:
        ConfigurationError: Not exactly one of the intervals is given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: ScalarWriter | None = None,
        summary_op: Sequence[str] | None = None,
    ) -> None:
        if (save_steps is None) == (save_secs is None):
            raise ConfigurationError(
                f"save_steps={save_steps} and save_secs={save_secs}: give one of them"
            )
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._output_dir, self._writer, self._names = output_dir, summary_writer, summary_op

    def begin(self) -> None:
        """Open the file."""
        if self._writer is None and self._output_dir:
            self._writer = summary_writer(self._output_dir)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        """Write if it is time."""
        values, step = run_values.values, run_values.values["global_step"]
        if self._writer is None or not self._timer.is_due(step):
            return
        self._timer.note(step)
        names = self._names
        if names is None:
            names = [n for n, v in values.items() if n != "global_step" and is_scalar(v)]
        for name in names:
            self._writer.add_scalar(name, to_float(value_of(name, values)), step)

    def end(self, session: RunningModel) -> None:  # noqa: ARG002
        """Have what was written be there."""
        if self._writer is not None:
            self._writer.flush()


class _ReportHook(SessionRunHook):
    """Shows the loss in the job's progress bar and status."""

    def __init__(self, total_steps: int | None) -> None:
        self._total_steps = total_steps

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:  # noqa: ARG002
        report(total_steps=self._total_steps, loss=to_float(run_values.values["loss"]))


def usual_hooks(
    *,
    model_dir: str,
    is_chief: bool,
    log_every: int | None,
    summarize_every: int | None,
    total_steps: int | None,
) -> list[SessionRunHook]:
    """Make the hooks of every training, as an Estimator's has them.

    Args:
        model_dir: Folder of event files.
        is_chief: Only the chief writes them.
        log_every: Steps between two lines; None or 0: none.
        summarize_every: Steps between two summaries; None or 0: none.
        total_steps: The global step it works towards, if that is known.
    """
    hooks: list[SessionRunHook] = [NanTensorHook(), _ReportHook(total_steps)]
    if log_every:
        hooks.append(LoggingTensorHook(["loss", "global_step"], every_n_iter=log_every))
    if is_chief and log_every:
        hooks.append(StepCounterHook(log_every, output_dir=model_dir))
    if is_chief and summarize_every:
        hooks.append(SummarySaverHook(summarize_every, output_dir=model_dir))
    return hooks


# -- Hooks that fewer programs use: a profile of a step now and then, and values at the end ----


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
