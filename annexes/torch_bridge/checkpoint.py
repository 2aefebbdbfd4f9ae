"""A module and its optimizer as a checkpoint that a job resumes from.

What an optimizer of PyTorch has learned (moments, velocities, its number of steps) becomes the
slots of the rule that computes the same on the servers, so a run that began with PyTorch alone goes
on under parameter servers as if nothing had happened.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.checkpoint.directory import new_checkpoint_path
from ...core.errors import ConfigurationError
from ...core.rules.update_rules import OnWorker
from ...distribute.job_snapshots import SavedVariable
from ...distribute.saved_variables import write_variables
from ...distribute.strategies.strategy import Strategy
from ...training import saving
from ...training.extras import require
from ...training.rule_table import optimizer_of, place_torch
from .names import named_buffers, named_parameters
from .tensors import to_array
from .updates import name_of_updates

_Slots = Mapping[str, tuple[str, float]]

_MOMENTS: _Slots = {"momentum": ("exp_avg", 1.0), "velocity": ("exp_avg_sq", 1.0)}
# Optimizer -> slot of its rule -> its own name, and the factor between the two.
_SLOTS: Mapping[str, _Slots] = {
    "SGD": {"momentum": ("momentum_buffer", -1.0)},  # the rule's velocity points downhill
    "Adam": _MOMENTS,
    "AdamW": _MOMENTS,
    "SparseAdam": _MOMENTS,
    "Adagrad": {"accumulator": ("sum", 1.0)},
    "Adadelta": {
        "accumulated_gradient": ("square_avg", 1.0), "accumulated_delta": ("acc_delta", 1.0),
    },
}  # fmt: skip


def save(obj: Any, path: str | Path, *, strategy: Strategy | None = None) -> bool:
    """Call ``torch.save`` on the chief alone, whose file appears whole or not at all.

    Args:
        obj: Object that ``torch.save`` takes, e.g. ``module.state_dict()``.
        path: Path on this machine. What is there is replaced.
        strategy: Strategy of the job, as in :func:`ropewalk.training.save`.

    Returns:
        Whether this task has written it.

    Raises:
        ValueError: ``path`` is a URL.
        OSError: It cannot be written.
    """
    torch = require("torch", "torch")
    return saving.save(path, lambda temporary: torch.save(obj, temporary), strategy=strategy)


def write_checkpoint(
    model_dir: str, module: Any, optimizer: Any, *, global_step: int | None = None, name: str = ""
) -> str:
    """Write what a module and its optimizer have learned, for a job to begin with.

    ::

        optimizer.load_state_dict(torch.load("adam.pt"))
        rw.training.torch.write_checkpoint("runs/model", module, optimizer)

    The job resumes from it with ``--model-dir runs/model``, a program that wraps a fresh optimizer
    of the same kind, and the same ``name``.

    Args:
        model_dir: Model directory of the job, without a newer checkpoint.
        module: Module whose parameters and buffers are written.
        optimizer: Optimizer of ``torch.optim`` that a rule of the servers computes.
        global_step: Global step of the checkpoint; None: the steps that the optimizer has made.
        name: The ``name`` of ``DistributedOptimizer``.

    Returns:
        Path of the checkpoint.

    Raises:
        ConfigurationError: No rule computes the optimizer, or its state has no counterpart.
        ValueError: The module has not all of the optimizer's parameters.
        OSError: The file system refused.
    """
    kind = type(optimizer).__name__
    names = {
        id(parameter): name for name, parameter in named_parameters(optimizer, module, name).items()
    }
    saved: dict[str, SavedVariable] = {}
    steps = 0
    for group in optimizer.param_groups:
        place = place_torch(kind, group)
        if isinstance(place, OnWorker) or kind not in _SLOTS:
            reason = place.reason if isinstance(place, OnWorker) else "has a state of its own form"
            raise ConfigurationError(
                f"{kind} {reason}, so its state cannot go to the servers; keep it on the worker "
                'with deltas="always", and load its state_dict there',
                optimizer=kind,
            )
        rule = optimizer_of(place).rule
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            slots: dict[str, Array] = {}
            for slot, start in rule.slot_start().items():
                own, factor = _SLOTS[kind][slot]
                entry = state.get(own)
                whole = np.full(tuple(parameter.shape), start, np.float32)
                slots[slot] = whole if entry is None else to_array(entry) * np.float32(factor)
            updates = int(state.get("step", 0 if not state else 1))
            steps = max(steps, updates)
            saved[names[id(parameter)]] = SavedVariable(
                to_array(parameter), slots, updates, rule.model_dump(mode="json"), trainable=True
            )
    for buffer_name, buffer in named_buffers(module, name).items():
        value = to_array(buffer)
        saved[buffer_name] = SavedVariable(
            value, {}, 0, None, trainable=value.dtype.kind not in "iub"
        )
    counter = name_of_updates(names.values(), name)
    saved[counter] = SavedVariable(np.array(steps, np.int64), {}, 0, None, trainable=False)
    path = new_checkpoint_path(model_dir, steps if global_step is None else global_step)
    write_variables(path, saved, {}, steps if global_step is None else global_step)
    return path
