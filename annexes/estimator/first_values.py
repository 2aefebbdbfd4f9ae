"""First values of the variables of a model_fn: their own, or those of a checkpoint."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...core.checkpoint import CheckpointReader
from ...core.errors import CheckpointError, ConfigurationError, ShapeMismatchError
from ...distribute.base.reductions import VariableAggregation, VariableSynchronization
from ...distribute.saved_variables import restore_variables
from ...distribute.variables.spec import VariableSpec, make_spec
from ...distribute.variables.variable import Variable

log = logging.getLogger(__name__)


class FirstValues(Protocol):
    """Asked once for each variable of a build, in cross-replica context."""

    def has(self, name: str) -> bool:
        """Return whether there is a checkpoint that has a variable of this name."""

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Choose the arguments with which a new variable is made."""

    def made(self, variable: Variable) -> None:
        """Handle a variable that was made."""

    def found(self, variable: Variable, given: dict[str, Any]) -> None:
        """Handle a variable that was there already, from an earlier call of the Estimator."""


@dataclass(frozen=True)
class WarmStartSettings:
    """The choice of variables that begin with the values of another checkpoint, as in
    ``tf.estimator``. As ``tf.estimator``'s.

    Attributes:
        ckpt_to_initialize_from: A checkpoint, or a directory: its newest one.
        vars_to_warm_start: A regular expression that names match from their beginning, or several
            of them; None: all trainable variables.
        var_name_to_prev_var_name: Names of the variables there, where they are others.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[str] | None = ".*"
    var_name_to_prev_var_name: Mapping[str, str] | None = None

    def chosen(self, name: str, *, trainable: bool) -> str | None:
        """Find a variable's name in the checkpoint; None: it begins anew."""
        patterns = self.vars_to_warm_start
        if patterns is None:
            wanted = trainable
        else:
            several = [patterns] if isinstance(patterns, str) else list(patterns)
            wanted = any(re.match(pattern, name) for pattern in several)
        return (self.var_name_to_prev_var_name or {}).get(name, name) if wanted else None


class AsTheyAre:
    """The variables' own first values; those that are there keep what they have learned."""

    def has(self, name: str) -> bool:  # noqa: ARG002
        """Return False: there is no checkpoint."""
        return False

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the program gave."""
        return given

    def made(self, variable: Variable) -> None:
        """Do nothing."""

    def found(self, variable: Variable, given: dict[str, Any]) -> None:
        """Do nothing."""


class Anew(AsTheyAre):
    """The variables' own first values, those that are there as well: another model's evaluation may
    have left values.
    """

    def found(self, variable: Variable, given: dict[str, Any]) -> None:
        """Give it what a new one would have."""
        spec = make_spec(**self.arguments({**given, "name": variable.name}))
        variable.assign(np.asarray(spec.first_value()))


class WarmStart(Anew):
    """First values from a checkpoint of another program, where it has them.

    Args:
        settings: Settings that say which variables are warm-started.
        reader: Reader of the checkpoint.
    """

    def __init__(self, settings: WarmStartSettings, reader: CheckpointReader) -> None:
        self._settings, self._reader = settings, reader

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Replace the first value by that of the checkpoint.

        Raises:
            CheckpointError: It lacks a variable that was named with another name there.
            ShapeMismatchError: It has it in another shape.
        """
        spec = make_spec(**given)
        before = self._settings.chosen(spec.name, trainable=spec.trainable)
        if before is None:
            return given
        if self._reader.variable(before) is None:
            if before != spec.name:
                raise CheckpointError(
                    f"{self._reader.path}, from which the model is warm-started, has no {before!r} "
                    f"for {spec.name!r}",
                    variable=spec.name,
                )
            log.warning("%s has no %r: it is not warm-started", self._reader.path, before)
            return given
        log.info("warm-started %r from %s", spec.name, self._reader.path)
        return _with_value(given, spec, self._reader, before)


class Resumed(AsTheyAre):
    """Values and slot variables from the model directory's checkpoint, to train on.

    Args:
        reader: Reader of the checkpoint.
    """

    def __init__(self, reader: CheckpointReader) -> None:
        self._reader = reader

    def made(self, variable: Variable) -> None:
        """Give it what the checkpoint has."""
        if not restore_variables(self._reader, {variable.name: variable}, {}):
            log.warning("%s has no %r: it begins anew", self._reader.path, variable.name)

    def found(self, variable: Variable, given: dict[str, Any]) -> None:  # noqa: ARG002
        """Give it what the checkpoint has."""
        self.made(variable)


class ToLookAt(Anew):
    """Values from a checkpoint, to evaluate and to predict. Sums of metrics begin anew.

    Args:
        reader: Reader of the checkpoint.
    """

    def __init__(self, reader: CheckpointReader) -> None:
        self._reader = reader

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a variable of this name."""
        return self._reader.variable(name) is not None

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Replace the first value by that of the checkpoint.

        Raises:
            CheckpointError: It lacks a variable that is trained.
            ShapeMismatchError: It has it in another shape.
        """
        spec = make_spec(**given)
        if _is_count(spec):
            return given
        if self._reader.variable(spec.name) is None:
            if not spec.trainable:
                return given
            names = ", ".join(map(repr, sorted(self._reader.manifest.variables)[:8]))
            raise CheckpointError(
                f"{self._reader.path} has no variable {spec.name!r}; it has {names}. model_fn has "
                "to make the variables of its training in every mode, under the same names; and "
                "each model has a model_dir of its own",
                variable=spec.name,
                path=self._reader.path,
            )
        return _with_value(given, spec, self._reader, spec.name)


def _is_count(spec: VariableSpec) -> bool:
    on_read = spec.synchronization is VariableSynchronization.ON_READ
    return on_read and spec.aggregation is VariableAggregation.SUM


def _with_value(
    arguments: dict[str, Any], spec: VariableSpec, reader: CheckpointReader, name: str
) -> dict[str, Any]:
    record = reader.variable(name)
    if record is not None and tuple(record.shape) != spec.shape:
        raise ShapeMismatchError(
            f"{reader.path} has {name!r} with shape {tuple(record.shape)}, model_fn makes "
            f"{spec.name!r} with shape {spec.shape}",
            variable=spec.name,
        )
    value = reader.read(name)
    return {
        **arguments,
        "initial_value": value,
        "dtype": spec.dtype,
        "shape": None,
        "initializer": None,
    }


def warm_start_settings(given: "str | WarmStartSettings | None") -> WarmStartSettings | None:
    """Read what ``warm_start_from`` means.

    Raises:
        ConfigurationError: It is neither a path nor settings.
    """
    if given is None or isinstance(given, WarmStartSettings):
        return given
    if isinstance(given, str):
        return WarmStartSettings(given)
    raise ConfigurationError(
        f"warm_start_from is a path or WarmStartSettings, got {type(given).__name__}"
    )
