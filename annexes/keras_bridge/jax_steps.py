"""Keras on JAX: a step is a compiled function of all state, which goes round through its caller.

The model's own ``train_step`` is compiled with an optimizer that hands the gradients out; they are
pushed, and Keras is given the values that come back as the weights of the next step. So a model's
own ``train_step``, losses, masks and weights of samples work as they do alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...core.terminal import counted
from ...distribute.variables.variable import Variable
from ...training.extras import require
from ..embedding.features.tables import Embeddings
from ..jax_bridge.arrays import on_device, to_hosts
from .jax_alone import WholeSteps
from .jax_features import FedFeatureReader
from .jax_replicas import OnMesh
from .jax_rows import FedReader, JaxRowReader, RowFeed
from .loop_state import plainly
from .optimizer import position_of

if TYPE_CHECKING:
    from .weights import SharedWeights

StatelessApply = Callable[[Any, Any, Any], tuple[Any, Any]]
"""Type of Keras' ``stateless_apply``: the optimizer's state, gradients and weights in, new weights
and a new state out.
"""


def train_step_with(
    apply: StatelessApply, model: Any, optimizer: Any, state: Any, data: Any
) -> tuple[Any, tuple[Any, Any, Any, Any]]:
    """Call ``model.train_step``.

    Args:
        apply: Function called in the place of ``optimizer.stateless_apply``.
        model: The Keras model.
        optimizer: Optimizer of the model.
        state: The whole state, as Keras hands it to ``train_step``.
        data: A batch.

    Returns:
        Logs, and the new state, as ``train_step`` returns them.

    Raises:
        ConfigurationError: It does not call ``stateless_apply`` once, or returns other weights.
    """
    weights_made: list[Any] = []

    def once(of_optimizer: Any, gradients: Any, trainable: Any) -> tuple[Any, Any]:
        new, of_optimizer = apply(of_optimizer, gradients, trainable)
        weights_made.append(new)
        return new, of_optimizer

    object.__setattr__(optimizer, "stateless_apply", once)
    try:
        logs, (trainable, *others) = model.train_step(state, data)
    finally:
        object.__delattr__(optimizer, "stateless_apply")
    if len(weights_made) != 1 or trainable is not weights_made[0]:
        raise ConfigurationError(
            f"train_step of {type(model).__name__} has to call "
            "self.optimizer.stateless_apply once and return the weights that it gives; it "
            f"called it {counted(len(weights_made), 'time')}"
        )
    non_trainable, of_optimizer, metrics = others
    return logs, (trainable, non_trainable, of_optimizer, metrics)


def kerases_own(optimizer: Any) -> StatelessApply:
    """Return the optimizer's ``stateless_apply`` as Keras has it, shared or not."""

    def apply(of_optimizer: Any, gradients: Any, trainable: Any) -> tuple[Any, Any]:
        with plainly():
            new: tuple[Any, Any] = type(optimizer).stateless_apply(
                optimizer, of_optimizer, gradients, trainable
            )
        return new

    return apply


jax: Any = require("jax", "keras")


COMPILES_ROWS = True
"""A compiled step is given the rows that it needs."""


class JaxSteps:
    """Steps of Keras on JAX. What it was given last is recognised by the identity of arrays."""

    def __init__(self, weights: "SharedWeights") -> None:
        self._weights = weights
        self._model = weights.model
        self._arrays = weights.shared.marks  # of which Keras was given these
        self._rate: Any = None  # the array that the rate was last read from
        self._rate_at: int | None = None
        self._iterations_at: int | None = None
        self._trainable: list[str] = []  # in the order of Keras' state
        self._positions: list[int] = []  # where they are in it
        self._count = 0  # of variables in it
        self._pushed: list[tuple[int, str]] = []  # of the other state, where it is there
        self._averages: list[tuple[int, str]] = []  # those of them that come back
        self._gradients: Any = None
        self._apply: Any = None
        self._whole: Any = None
        self._alone: WholeSteps | None = None
        placement = weights.placement
        several = placement is not None and placement.mesh is not None
        self._mesh: OnMesh | None = placement if several else None
        self._readers: list[FedReader] = placement.readers if placement is not None else []
        self._rows: RowFeed | None = None

    # -- values ------------------------------------------------------------------------------

    def array(self, variable: Any) -> Array:
        """Read a variable's value, of the same memory on the CPU."""
        return np.asarray(variable.value)

    def load(self, names: Mapping[str, Any], values: Mapping[str, Array]) -> None:
        """Load arrays of JAX, of the same memory where they are large."""
        for variable, array in zip(names.values(), self._take(values, list(names)), strict=True):
            variable.assign(array)
        if names.keys() == self._weights.variables.keys():
            self._loaded()

    def _loaded(self) -> None:
        """Note that the model has the values of the store."""
        if self._alone is not None:
            self._alone.loaded()

    def _take(self, values: Mapping[str, Array], names: Sequence[str]) -> list[Any]:
        """Note what came; returns arrays of JAX for these names."""
        return self._note(on_device([values[name] for name in names]), names)

    def _note(self, arrays: list[Any], names: Sequence[str]) -> list[Any]:
        self._arrays.update(zip(names, arrays, strict=True))
        return arrays

    def changed(self) -> Mapping[str, Array]:
        """Find the variables of another array, and of other values."""
        return self._changed({n: v.value for n, v in self._weights.variables.items()})

    def _changed(self, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
        values = self._weights.shared.values
        return {
            name: np.asarray(array)
            for name, array in arrays.items()
            if array is not self._arrays.get(name, array)
            and not np.array_equal(np.asarray(array), values[name])
        }

    def sync(self) -> None:
        """Sync the variables: within an epoch Keras keeps all state outside of them."""
        self._model.jax_state_sync()

    # -- steps -------------------------------------------------------------------------------

    def make_train_function(self) -> None:
        """Compile the model's ``train_step``."""
        model, weights = self._model, self._weights
        optimizer = weights.optimizer
        self._rate = None
        self._rate_at = position_of(optimizer, "_learning_rate")
        self._iterations_at = position_of(optimizer, "_iterations")
        self._know_variables()
        self._gradients = self._fed(self._gradients_of, [True] * 4)
        self._apply = self._wrap()(kerases_own(optimizer))
        self._whole = self._wrap()(self._whole_of)
        if self._alone is None and self._may_be_alone():
            self._alone = WholeSteps(weights)
        model.train_function = model._make_function(self._step)

    def _may_be_alone(self) -> bool:
        """Return whether nothing but the store keeps a step from being the model's own."""
        return self._weights.worker_reason is not None and not self._readers and self._mesh is None

    def _know_variables(self) -> None:
        """Know what is trained from now on, and where it is in Keras' state."""
        model, weights = self._model, self._weights
        every = model.trainable_variables
        self._count = len(every)
        self._trainable = weights.trained_names()
        self._positions = [i for i, v in enumerate(every) if not weights.is_gradient_way(v)]
        pushed = set(weights.pushed_state())
        names = ((i, weights.name_of(v)) for i, v in enumerate(model.non_trainable_variables))
        self._pushed = [(i, name) for i, name in names if name in pushed]
        self._averages = [(i, name) for i, name in self._pushed if name in weights.averages]

    def make_test_function(self) -> None:
        """Keras' own, if it needs neither rows nor several devices."""
        model = self._model
        if not self._readers and self._mesh is None:
            type(model).make_test_function(model, True)
            return
        model.test_function = model._make_function(self._with_rows(model.test_step))

    def make_predict_function(self) -> None:
        """Keras' own, if it needs neither rows nor several devices."""
        model = self._model
        if not self._readers and self._mesh is None:
            type(model).make_predict_function(model, True)
            return

        def predict_step(state: Any, data: Any) -> Any:
            outputs, others = model.predict_step(state, data)
            return outputs, (state[0], others)

        model.predict_function = model._make_function(
            self._with_rows(predict_step), concatenate_outputs=True
        )

    def new_reader(self, layer: Any, table: Variable) -> JaxRowReader:
        """Make a reader for steps that are given rows."""
        return JaxRowReader(layer, table)

    def new_feature_reader(self, layer: Any, embeddings: Embeddings) -> FedFeatureReader:
        """Make a reader of features for steps that are given rows.

        Raises:
            ConfigurationError: Several replicas of this process share a batch.
        """
        if self._weights.placement is not None:
            raise ConfigurationError(
                f"{layer.name!r} is in a model that several replicas of this process compute, "
                "which a DistributedEmbedding on JAX cannot divide; start a process for each "
                "replica, or use rw.training.keras.Embedding"
            )
        return FedFeatureReader(layer, embeddings)

    def use_reader(self, reader: FedReader) -> None:
        """Give steps its rows."""
        self._readers.append(reader)

    def _wrap(self) -> Any:
        jitted = self._model.jit_compile and not self._model.run_eagerly
        return jax.jit if jitted else lambda function: function

    def _fed(self, function: Any, whole: Sequence[bool]) -> Any:
        """Compile a function of (state, data) whose state has the rows that data needs.

        Args:
            function: Function to compile.
            whole: Whether every device has a result, for each of its results, where there are
                several devices.
        """
        wrap = self._wrap()
        if self._readers:
            self._rows = self._rows or RowFeed(self._model, self._readers, wrap)
            function = self._rows.traced(function)
        mesh = self._mesh if wrap is jax.jit else None
        compiled = wrap(function) if mesh is None else mesh.jit(function, whole=whole)
        if self._rows is not None:
            compiled = self._rows.fed(compiled)
        if mesh is None:
            return compiled
        return lambda state, data: compiled(state, mesh.placed(data))

    def _with_rows(self, function: Any) -> Any:
        """Wrap a step of Keras', so that it gives back the weights that it was given."""
        fed = self._fed(function, [False, True])

        def step(state: Any, data: Any) -> Any:
            outputs, (_, *others) = fed(state, data)
            return outputs, (state[0], *others)

        return step

    def _step(self, state: Any, data: Any) -> Any:
        """Make a step of training: what Keras' own compiled ``train_step`` takes and returns."""
        weights = self._weights
        every, others, of_optimizer, metrics = state
        if len(every) != self._count:  # a part was frozen, or trains again
            self._know_variables()
        trainable: Sequence[Any] = [every[i] for i in self._positions]
        if any(
            array is not self._arrays[name]
            for name, array in zip(self._trainable, trainable, strict=True)
        ):
            trainable, others = self._follow(trainable, others)
        else:
            weights.changes.give_before_step({})
        every = self._placed(trainable, every)
        if self._alone is not None:
            state = (every, others, of_optimizer, metrics)
            outcome = self._alone.step(self._whole, state, data, self._shared_of)
            if outcome is not None:
                return outcome
        logs, gradients, others, metrics = self._gradients(
            (every, others, of_optimizer, metrics), data
        )
        if self._rows is not None:
            self._rows.note(gradients)
        named = {n: gradients[i] for n, i in zip(self._trainable, self._positions, strict=True)}
        # An optimizer on this worker takes gradients where they are, if no other replica's join.
        extended = weights.store.strategy.extended
        if weights.worker_reason is None or extended.num_replicas_in_sync > 1:
            named = to_hosts(named)
        changed = to_hosts({name: others[i] for i, name in self._pushed})
        if weights.worker_reason is None:
            self._follow_rate(of_optimizer)
            values = weights.exchange(named, changed=changed)
            taken, of_optimizer = self._take_and_count(values, of_optimizer)
        else:
            before, updated = of_optimizer, of_optimizer

            def update(reduced: Mapping[str, Any]) -> Mapping[str, Any]:
                nonlocal updated
                # What stands for rows has no gradient of its own.
                zeros = [np.zeros(array.shape, array.dtype) for array in every]
                zeros = self._placed([reduced[name] for name in self._trainable], zeros)
                new, updated = self._apply(before, zeros, every)
                return {
                    name: np.asarray(new[i]) - np.asarray(every[i])
                    for name, i in zip(self._trainable, self._positions, strict=True)
                }

            def counts() -> None:
                nonlocal of_optimizer
                of_optimizer = updated

            values = weights.exchange(
                named, update=update, changed=changed, state=lambda: updated, counts=counts
            )
            taken = self._take(values, self._names())
            self._loaded()
        trainable, others = self._parted(taken, others)
        every = self._placed(trainable, every)
        return logs, (every, others, of_optimizer, metrics)

    def _names(self) -> list[str]:
        """List what comes back from a step: weights that are trained, and averages."""
        return [*self._trainable, *(name for _, name in self._averages)]

    def _parted(self, taken: Sequence[Any], others: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Split arrays of :meth:`_names`: the weights, and the other state with the averages in
        it.
        """
        count, placed = len(self._trainable), list(others)
        for (i, _), array in zip(self._averages, taken[count:], strict=True):
            placed[i] = array
        return list(taken[:count]), placed

    def _placed(self, trainable: Sequence[Any], every: Sequence[Any]) -> list[Any]:
        """Put weights among what stands for rows, in the order of Keras' state."""
        placed = list(every)
        for i, array in zip(self._positions, trainable, strict=True):
            placed[i] = array
        return placed

    def _gradients_of(self, state: Any, data: Any) -> Any:
        """Run the model's ``train_step``, whose optimizer gives the gradients for the weights."""
        logs, (gradients, others, _, metrics) = train_step_with(
            lambda of_optimizer, gradients, _: (gradients, of_optimizer),
            self._model,
            self._weights.optimizer,
            state,
            data,
        )
        return logs, list(gradients), others, metrics

    def _whole_of(self, state: Any, data: Any) -> Any:
        """Run the model's ``train_step`` as it is."""
        optimizer = self._weights.optimizer
        return train_step_with(kerases_own(optimizer), self._model, optimizer, state, data)

    def _shared_of(self, state: Any) -> dict[str, Any]:
        """Collect what steps change of the shared weights, in a state of Keras, by name."""
        every, others, _, _ = state
        shared = {name: every[i] for name, i in zip(self._trainable, self._positions, strict=True)}
        return shared | {name: others[i] for i, name in self._pushed}

    def _follow(
        self, trainable: Sequence[Any], others: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Bring weights and other state up to date for a step whose weights are not those of the
        last one's end.
        """
        by_name = dict(zip(self._trainable, trainable, strict=True))
        changed = self._changed(by_name)
        self._weights.changes.give_before_step(changed)
        if not changed:
            self._arrays.update(by_name)  # Keras has copied them
            return trainable, others
        values = self._weights.pull()
        self._weights.shared.values.update(values)
        self._loaded()
        return self._parted(self._take(values, self._names()), others)

    def _follow_rate(self, of_optimizer: Sequence[Any]) -> None:
        if self._rate_at is None or of_optimizer[self._rate_at] is self._rate:
            return
        self._rate = of_optimizer[self._rate_at]
        self._weights.set_rate(float(self._rate))

    def _take_and_count(
        self, values: Mapping[str, Array], of_optimizer: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Take the weights that came, and the optimizer's state with one step more.

        ``optimizer.iterations`` is the job's step; of strategies without one, this worker's. It
        becomes an array of JAX in one call with the weights: by itself that takes 0.1 ms.
        """
        counted, at = list(of_optimizer), self._iterations_at
        if at is None:
            return self._take(values, self._names()), counted
        before = counted[at]
        steps = np.asarray(self._weights.iterations or int(before) + 1, before.dtype)
        names = self._names()
        *taken, counted[at] = on_device([*(values[name] for name in names), steps])
        return self._note(taken, names), counted


STEPS = JaxSteps
