"""Rule that an optax transformation is, if any: read from its closures, then tried out.

A transformation is a pair of functions; what it was made with is in their closures alone. Reading
those depends on how optax is written, so a rule that was found this way is compared with the
transformation itself on three steps of a few numbers. If anything is not as expected, the
transformation is one that runs on the worker: slower for it, and never wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from ...core.arrays.dtypes import Array
from ...core.rules.known_rules import built_in
from ...core.rules.update_rules import OnServer, OnWorker, Place, UpdateRule, make_rule
from ...engine.update_kernel import apply_formula
from ...training.extras import require
from ...training.rule_table import place_optax

_DEPTH = 20  # chains in chains
_STEPS = 3
_WRAPPER = "with_extra_args_support"
_RATES = {"scale": "step_size", "scale_by_schedule": "step_size_fn"}


def place_transformation(transformation: Any) -> Place:
    """Choose where an optax transformation runs: by a rule, or on the worker for a reason.

    Args:
        transformation: A ``GradientTransformation``.
    """
    try:
        place = place_optax([_with_rate(*part) for part in _parts(transformation)])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return OnWorker(f"cannot be read ({type(error).__name__}: {error})")
    if isinstance(place, OnWorker):
        return place
    if "float32_correction" in place.arguments and require("jax", "jax").config.jax_enable_x64:
        place = replace(place, arguments={**place.arguments, "float32_correction": False})
    try:
        same = _is_same(transformation, place)
    except (TypeError, ValueError, ValidationError) as error:
        return OnWorker(f"has hyperparameters that its rule does not take ({error})")
    return place if same else OnWorker(f"computes something else than {place.rule} here")


def _parts(transformation: Any, depth: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """List the transformations of a chain: name and what it was made with."""
    if depth > _DEPTH:
        raise ValueError("chains are nested too deeply")
    update, init = transformation.update, transformation.init
    name, inside = update.__qualname__.partition(".")[0], _closure(update)
    if not (module := str(getattr(update, "__module__", ""))).startswith("optax."):
        return [(f"{module}.{name}", {})]  # the program's own, which may be called as optax's are
    if name == "chain":
        return [
            part
            for inside_update in inside["update_fns"]
            for part in _parts(_Only(inside_update), depth + 1)
        ]
    if name == _WRAPPER:
        return _parts(inside["tx"], depth + 1)
    if name == "identity":
        return []
    return [(name, _closure(init) | inside)]


class _Only:
    """A function of a chain, as a transformation."""

    def __init__(self, update: Callable[..., Any]) -> None:
        self.update = update
        self.init = update


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    return (
        dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
        if code
        else {}
    )


def _with_rate(name: str, arguments: dict[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Rename the rate: a step is added, so its size is the negative rate."""
    if name not in _RATES:
        return name, arguments
    size = arguments[_RATES[name]]
    return name, {"rate": (lambda step: -size(step)) if callable(size) else -float(size)}


def _is_same(transformation: Any, place: OnServer) -> bool:
    """Return whether rule and transformation take the same three steps."""
    draw = np.random.default_rng(0)
    value = draw.standard_normal(6).astype(np.float32)
    gradients = [draw.standard_normal(6).astype(np.float32) for _ in range(_STEPS)]
    return bool(
        np.allclose(
            _by_rule(place, value, gradients),
            _by_optax(transformation, value, gradients),
            rtol=1e-4,
            atol=1e-6,
        )
    )


def _by_rule(place: OnServer, value: Array, gradients: Sequence[Array]) -> Array:
    arguments = dict(place.arguments)
    rate = arguments.pop("learning_rate")
    rule: UpdateRule = make_rule(built_in(place.rule), arguments)
    value = value.copy()
    slots = {name: np.full(value.shape, at, np.float32) for name, at in rule.slot_start().items()}
    for step, gradient in enumerate(gradients):
        g = gradient + np.float32(place.decay) * value
        limit = rule.global_clipnorm
        scale = 1.0 if limit is None else min(1.0, limit / float(np.linalg.norm(g)))
        now = float(rate(step)) if callable(rate) else rate
        apply_formula(np, rule, value, slots, g, ..., rate=now, updates=step + 1, scale=scale)
    return value


def _by_optax(transformation: Any, value: Array, gradients: Sequence[Array]) -> Array:
    state = transformation.init(value)
    for gradient in gradients:
        step, state = transformation.update(gradient, state, value)
        value = np.asarray(value + np.asarray(step))
    return value
