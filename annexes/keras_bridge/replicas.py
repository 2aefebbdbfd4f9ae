"""A model that several replicas of this process compute together, each its part of a batch.

While a step runs, the model's ``call`` divides the inputs among the replicas, has each compute on
its device, and puts the outputs together. All else of the step is Keras' own and sees one batch:
loss, masks, weights of examples, metrics, and the gradient, which goes back through every replica
and adds up. So a step is that of one device, whatever its loss divides by.

What the model changes while it is called (``replica_parts.combination``) becomes one value: states
of metrics are added up, other floating-point numbers averaged over the examples, and of the rest
the first replica's count. Each replica's seed generators draw other numbers.

A number that a layer gives to ``add_loss`` is taken for a mean over a replica's examples, and an
array with one number for each example is added up, as Keras does.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ...core.errors import ConfigurationError
from .frameworks import keras, looks_for_shapes
from .replica_parts import combination, part_bounds, seed_offsets


@dataclass(frozen=True, slots=True)
class Made:
    """The results that one replica, or all, made of examples.

    Attributes:
        outputs: Outputs of the model.
        masks: Mask of each output, flat; None: it has none.
        losses: The losses that layers gave to ``add_loss``, each a number.
        per_example: Whether each loss had one number per example, so that it adds up.
        state: New values of variables, by their number.
    """

    outputs: Any
    masks: list[Any]
    losses: list[Any]
    per_example: list[bool]
    state: dict[int, Any]


One = Callable[[Sequence[Any], Any, Any], Made]
"""Calls the model for one replica: values of its variables, offset of its seeds, (args, kwargs)."""


class Placement(Protocol):
    """Place in which replicas compute on one framework."""

    def undivided(self, function: Any) -> Any:
        """Wrap a function so that no compiler of Python looks into it."""

    def device(self, replica: int) -> AbstractContextManager[Any]:
        """Enter a context in which operations go to a replica's device."""

    def move(self, value: Any, replica: int) -> Any:
        """Move a tensor there; its gradient comes back."""

    def home(self, value: Any) -> Any:
        """Move a tensor to where the step goes on."""

    def at_once(self, one: One, values: Sequence[Any], given: "Given") -> list[Made] | None:
        """Run all replicas in one program for several devices; outputs are whole, in the first.

        None: they have to run one after the other.
        """


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments of a call, flat.

    Attributes:
        leaves: Leaves of (args, kwargs).
        divided: Whether each leaf has an axis of examples.
        examples: Number of examples; a tensor in a graph that does not know it.
        rebuild: Makes (args, kwargs) of leaves.
        offsets: Offset of each replica's seeds.
    """

    leaves: list[Any]
    divided: list[bool]
    examples: Any
    rebuild: Callable[[Sequence[Any]], Any]
    offsets: list[int]


class Replicas:
    """Divides the calls of a model in its steps.

    Args:
        model: Built or not; its ``call`` is replaced.
        count: Number of replicas.
        placement: Place in which the replicas compute.
    """

    def __init__(self, model: Any, count: int, placement: Placement) -> None:
        self._model, self._count, self._placement = model, count, placement
        self._active = False
        self._offsets = seed_offsets(count)
        self._call = model.call
        divided = placement.undivided(self._divided_call)

        @functools.wraps(self._call)
        def call(*args: Any, **kwargs: Any) -> Any:
            # Keras calls a model for the shapes of its outputs, too, and programs call it by hand.
            if not self._active or looks_for_shapes():
                return self._call(*args, **kwargs)
            return divided(args, kwargs)

        object.__setattr__(model, "call", call)

    def stepping(self, function: Any) -> Any:
        """Wrap a function of steps (``train_function``) so that calls are divided in it."""

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            with self._set_active(active=True):
                return function(*args, **kwargs)

        return step

    @contextmanager
    def _set_active(self, *, active: bool) -> Iterator[None]:
        before, self._active = self._active, active
        try:
            yield
        finally:
            self._active = before

    # -- a call ------------------------------------------------------------------------------

    def _divided_call(self, args: Any, kwargs: Any) -> Any:
        divided = self._given(args, kwargs)
        if divided is None:
            return self._call(*args, **kwargs)
        variables, seeds = _variables_of(self._model)
        with keras.src.backend.AutocastScope(None):  # whole, not as layers of mixed precision see
            values = [variable.value for variable in variables]

        def one(values: Sequence[Any], offset: Any, parts: Any) -> Made:
            return self._one(variables, seeds, values, offset, parts)

        with self._set_active(active=False):
            results = self._placement.at_once(one, values, divided)
            if results is None:
                return self._in_turn(one, variables, values, divided)
        whole = results[0].outputs
        shares = [1 / self._count] * self._count
        self._combine(results, variables, values, shares)
        return _with_masks(whole, results[0].masks)

    def _given(self, args: Any, kwargs: Any) -> Given | None:
        leaves = keras.tree.flatten((args, kwargs))
        sizes = [keras.ops.shape(leaf)[0] if _has_examples(leaf) else None for leaf in leaves]
        examples = next((size for size in sizes if size is not None), None)
        if examples is None:
            return None
        dynamic = not isinstance(examples, int)
        divided = [
            size is not None and (dynamic or not isinstance(size, int) or size == examples)
            for size in sizes
        ]

        def rebuild(new: Sequence[Any]) -> Any:
            return keras.tree.pack_sequence_as((args, kwargs), list(new))

        return Given(leaves, divided, examples, rebuild, self._offsets)

    def _in_turn(
        self, one: One, variables: Sequence[Any], values: Sequence[Any], parts: Given
    ) -> Any:
        examples, placement = parts.examples, self._placement
        static = isinstance(examples, int)
        bounds = part_bounds(examples, self._count) if static else _bounds(examples, self._count)
        results, shares = [], []
        for replica, (start, stop) in enumerate(bounds):
            if static and start == stop:
                continue
            with placement.device(replica):
                leaves = [
                    placement.move(leaf[start:stop], replica) if divided else leaf
                    for leaf, divided in zip(parts.leaves, parts.divided, strict=True)
                ]
                own = [placement.move(value, replica) for value in values]
                results.append(one(own, parts.offsets[replica], parts.rebuild(leaves)))
            size = stop - start
            shares.append(size / examples if static else _share(size, examples))
        flat = [keras.tree.flatten(result.outputs) for result in results]
        outputs = [self._joined(column) for column in zip(*flat, strict=True)]
        masks = [self._joined(column) for column in zip(*(e.masks for e in results), strict=True)]
        self._combine(results, variables, values, shares)
        return _with_masks(keras.tree.pack_sequence_as(results[0].outputs, outputs), masks)

    def _joined(self, parts: Sequence[Any]) -> Any:
        if parts[0] is None:
            return None
        return keras.ops.concatenate([self._placement.home(part) for part in parts], axis=0)

    def _one(
        self,
        variables: Sequence[Any],
        seeds: Sequence[int],
        values: Sequence[Any],
        offset: Any,
        inputs: Any,
    ) -> Made:
        """Call the model for one replica, and take what it would have changed."""
        values = list(values)
        for number in seeds:
            dtype = variables[number].dtype
            shift = keras.ops.stack([keras.ops.cast(offset, dtype), keras.ops.cast(0, dtype)])
            values[number] = values[number] + shift
        args, kwargs = inputs
        examples = next(
            leaf.shape[0] for leaf in keras.tree.flatten((args, kwargs)) if _has_examples(leaf)
        )
        scope = keras.StatelessScope(
            zip(variables, values, strict=True), collect_losses=True, initialize_variables=False
        )
        before = dict(scope.state_mapping)
        with scope:
            outputs = self._call(*args, **kwargs)
            masks = [_mask_of(leaf) for leaf in keras.tree.flatten(outputs)]
        for leaf in keras.tree.flatten(outputs):
            self._require_examples(leaf, examples)
        mapping = scope.state_mapping
        ids = {id(loss) for loss in scope.losses}
        if ids:
            for layer in self._model._flatten_layers():
                layer._loss_ids.difference_update(ids)
        return Made(
            outputs,
            masks,
            [keras.ops.sum(loss) for loss in scope.losses],
            [len(loss.shape) > 0 and loss.shape[0] == examples for loss in scope.losses],
            {
                number: mapping[id(variable)]
                for number, variable in enumerate(variables)
                if mapping[id(variable)] is not before[id(variable)]
            },
        )

    def _require_examples(self, leaf: Any, examples: int | None) -> None:
        shape = tuple(leaf.shape)
        if not shape or (None not in (shape[0], examples) and shape[0] != examples):
            raise ConfigurationError(
                f"{self._model.name!r} gives an output of shape {shape} for the {examples} "
                "examples of a replica; with several replicas in a process the first axis of every "
                "output has to be that of the examples: give the rest to add_loss or to metrics"
            )

    # -- what becomes of it ------------------------------------------------------------------

    def _combine(
        self,
        results: Sequence[Made],
        variables: Sequence[Any],
        values: Sequence[Any],
        shares: Sequence[Any],
    ) -> None:
        """Give the model's variables, and its losses, what all replicas made of them."""
        home = self._placement.home
        first = results[0]
        for number in first.state:
            variable, old = variables[number], values[number]
            news = [home(result.state[number]) for result in results]
            how = combination(
                getattr(variable, "aggregation", None),
                is_float=keras.backend.is_float_dtype(variable.dtype),
            )
            if how == "first":
                variable.assign(news[0])
            elif how == "mean":
                variable.assign(_weighted(news, shares))
            else:
                variable.assign(old + sum(new - old for new in news))
        for number, per_example in enumerate(first.per_example):
            losses = [home(result.losses[number]) for result in results]
            # Functional models refuse it of programs; here it comes from their layers.
            keras.layers.Layer.add_loss(
                self._model, sum(losses) if per_example else _weighted(losses, shares)
            )


def _variables_of(model: Any) -> tuple[list[Any], list[int]]:
    """List all that a call may change, each once, and which are states of seed generators."""
    generators = [g for layer in model._flatten_layers() for g in layer._seed_generators]
    if keras.backend.backend() != "jax":  # on which a call may not draw without a generator
        generators.append(keras.src.random.seed_generator.global_seed_generator())
    by_id = {id(variable): variable for variable in model.variables}
    by_id.update((id(generator.state), generator.state) for generator in generators)
    states = {id(generator.state) for generator in generators}
    return list(by_id.values()), [i for i, key in enumerate(by_id) if key in states]


def _has_examples(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and len(leaf.shape) > 0


def _bounds(examples: Any, replicas: int) -> list[tuple[Any, Any]]:
    """Compute :func:`part_bounds` of a number that is a tensor."""
    ops = keras.ops
    size = -(-examples // replicas)
    return [
        (ops.minimum(i * size, examples), ops.minimum((i + 1) * size, examples))
        for i in range(replicas)
    ]


def _share(size: Any, examples: Any) -> Any:
    ops = keras.ops
    return ops.cast(size, "float32") / ops.cast(ops.maximum(examples, 1), "float32")


def _weighted(values: Sequence[Any], shares: Sequence[Any]) -> Any:
    """Average so that replicas without examples, whose values may be NaN, count for nothing."""
    ops = keras.ops
    total: Any = None
    for value, share in zip(values, shares, strict=True):
        if isinstance(share, float):
            part = value * share
        else:
            part = ops.where(share > 0, value * ops.cast(share, value.dtype), 0)
        total = part if total is None else total + part
    return total


def _mask_of(tensor: Any) -> Any:
    return keras.src.backend.get_keras_mask(tensor)


def _with_masks(outputs: Any, masks: Sequence[Any]) -> Any:
    for leaf, mask in zip(keras.tree.flatten(outputs), masks, strict=True):
        if mask is not None:
            keras.src.backend.set_keras_mask(leaf, mask)
    return outputs
