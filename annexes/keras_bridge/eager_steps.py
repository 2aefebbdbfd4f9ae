"""The part that steps of PyTorch and TensorFlow share: variables that are changed in place."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.arrays.dtypes import Array, same_values
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import NonFiniteGradientError
from ...distribute.base.contexts import is_running
from ...distribute.strategies.finite_updates import not_finite
from .frameworks import keras
from .loop_state import plainly

if TYPE_CHECKING:
    from .weights import SharedWeights


def joined(parts: Sequence[tuple[Array, Array]]) -> IndexedSlices | None:
    """Join gradients of several reads of a table, (ids, gradient of their rows)."""
    if not parts:
        return None
    if len(parts) == 1:
        return IndexedSlices(parts[0][1], parts[0][0])
    ids = np.concatenate([ids.reshape(-1) for ids, _ in parts])
    dim = parts[0][1].shape[-1]
    return IndexedSlices(np.concatenate([g.reshape(-1, dim) for _, g in parts]), ids)


class EagerSteps(ABC):
    """Gradients go out and values come back between the framework's own calls.

    What others have assigned is recognised by a mark of each variable, which is another one after
    each assignment.
    """

    def __init__(self, weights: "SharedWeights") -> None:
        self._weights = weights
        self._model = weights.model
        self._marks = weights.shared.marks
        self._rate_mark: object = None
        self._trainable: dict[str, Any] = {}
        self._pushed: list[str] = []
        self._loaded: dict[str, Any] = {}  # in every step

    # -- of the framework --------------------------------------------------------------------

    @abstractmethod
    def array(self, variable: Any) -> Array:
        """Read a variable's value on the host; of the same memory where that is possible."""

    @abstractmethod
    def assign(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Copy values into variables, in place."""

    @abstractmethod
    def mark(self, variable: Any) -> object:
        """Return a mark that is another one after each assignment."""

    assigns_unmarked = False
    """Whether a step may assign to variables without another mark."""

    def on_host(self, variable: Any) -> bool:  # noqa: ARG002 - of JAX it is not asked
        """Return whether a variable's value can be read without a copy."""
        return False

    @abstractmethod
    def gradient(self, tensor: Any) -> Array:
        """Read a dense gradient, of the same memory on the CPU."""

    @abstractmethod
    def tensor(self, gradient: Array, variable: Any) -> Any:
        """Convert the gradient of a variable to what its optimizer takes."""

    def has_rows(self, gradient: Any) -> bool:  # noqa: ARG002 - of TensorFlow some do
        """Return whether a gradient has rows, which the framework's own optimizers take as they
        are.
        """
        return False

    @abstractmethod
    def apply_here(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Make a step of the model's own optimizer."""

    def state_copy(self) -> Callable[[], None]:
        """Copy what the optimizer on this worker knows; what is returned puts it back."""
        variables = self._weights.optimizer.variables
        values = [np.array(self.array(variable)) for variable in variables]
        return lambda: self.assign(variables, values)

    # -- values ------------------------------------------------------------------------------

    def load(self, names: Mapping[str, Any], values: Mapping[str, Array]) -> None:
        """Load values into the variables in place."""
        self.assign(list(names.values()), [values[name] for name in names])
        self._marks.update((name, self.mark(variable)) for name, variable in names.items())
        self._weights.shared.given.update((name, values[name]) for name in names)

    def changed(self) -> Mapping[str, Array]:
        """Find the variables of other values than they were given."""
        return self._other_values(self._weights.variables)

    def _other_values(self, variables: Mapping[str, Any]) -> Mapping[str, Array]:
        arrays = ((name, self.array(variable)) for name, variable in variables.items())
        last_values = self._weights.shared.given
        return {
            name: array
            for name, array in arrays
            if name in last_values and not same_values(array, last_values[name])
        }

    def sync(self) -> None:  # noqa: B027 - of JAX there is something to do
        """Do nothing: variables have everything."""

    # -- steps -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Know what is trained from now on."""
        weights = self._weights
        self._trainable = {name: weights.variables[name] for name in weights.trained_names()}
        self._pushed = weights.pushed_state()
        averages = {name: weights.variables[name] for name in weights.averages}
        self._loaded = self._trainable | averages
        self._rate_mark = None
        if weights.worker_reason is not None:
            self.build_optimizer()

    def build_optimizer(self) -> None:
        """Have its state, where it runs on this worker; it may be another one than at first."""
        optimizer = self._weights.optimizer
        if not optimizer.built:
            with plainly():
                optimizer.build(self._model.trainable_variables)

    def follow(self) -> None:
        """Take up, before a step, what a callback or the program has assigned, in whatever way.

        Values on the host are compared, since marks miss what a graph of TensorFlow assigns, and
        what is done to ``Tensor.data``. That takes as long as a copy of them.
        """
        changed = self._other_values(
            {
                name: variable
                for name, variable in self._trainable.items()
                if self.on_host(variable) or self.mark(variable) != self._marks[name]
            }
        )
        self._weights.changes.give_before_step(changed)
        if changed:
            self._weights.load(self._weights.pull())

    def make_test_function(self) -> None:
        """Keras' own."""
        type(self._model).make_test_function(self._model, True)

    def make_predict_function(self) -> None:
        """Keras' own."""
        type(self._model).make_predict_function(self._model, True)

    def push(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Push the gradients of a step, and load what comes back."""
        weights = self._weights
        pairs = zip(gradients, variables, strict=True)
        kept = [(g, v) for g, v in pairs if not weights.is_gradient_way(v)]
        gradients, variables = [g for g, _ in kept], [v for _, v in kept]
        names = [weights.name_of(variable) for variable in variables]
        named = {
            name: self.gradient(gradient)
            for name, gradient in zip(names, gradients, strict=True)
            if gradient is not None and name is not None
        }
        changed = {name: self.array(weights.variables[name]) for name in self._pushed}
        if weights.worker_reason is None:
            self._give_assigned_in_step()
            values = self.push_to_servers(named, changed)
        else:
            before = {name: weights.shared.given[name] for name in self._loaded}
            undo: Callable[[], None] | None = None

            def update(reduced: Mapping[str, Array]) -> Mapping[str, Array]:
                nonlocal undo
                if not_finite(reduced) is not None:
                    undo = self.state_copy()

                def taken(name: str | None, gradient: Any, variable: Any) -> Any:
                    if name is None or gradient is None:
                        return None
                    if self.has_rows(gradient) and reduced[name] is named[name]:
                        return gradient
                    return self.tensor(reduced[name], variable)

                self.apply_here(list(map(taken, names, gradients, variables)), variables)
                return {
                    name: self.array(weights.variables[name]) - before[name] for name in reduced
                }

            def counts() -> None:
                nonlocal undo
                undo = None

            try:
                values = weights.exchange(named, update=update, changed=changed, counts=counts)
            except NonFiniteGradientError:  # what was refused is in the variables by now
                self.load(self._loaded, before)
                raise
            finally:
                if undo is not None:
                    undo()
        self.load(self._loaded, values)

    def _give_assigned_in_step(self) -> None:
        """Have the servers take what a layer has assigned to a trained weight in its ``call``.

        Spectral normalization does: gradients are of the new value, to which they are applied.
        """
        marked = {
            name: variable
            for name, variable in self._trainable.items()
            if self.mark(variable) != self._marks[name]
            or (self.assigns_unmarked and self.on_host(variable))
        }
        if marked and self._weights.can_assign:
            assigned = self._other_values(marked)
            if assigned:
                self._weights.changes.give(assigned)

    def push_to_servers(
        self, named: dict[str, Array], changed: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Push a step of an optimizer that runs there: its settings as they are now, and its count.

        Args:
            named: Gradients by name.
            changed: Values that the step has made of layers' state, by name.
        """
        weights, optimizer = self._weights, self._weights.optimizer
        self._follow_rate(optimizer)
        values = weights.exchange(named, changed=changed)
        iterations = int(optimizer._iterations.numpy()) + 1
        steps = weights.iterations
        if is_running(weights.store.strategy):  # which some strategies count when it ends
            steps = max(steps, iterations)
        optimizer._iterations.assign(steps or iterations)
        return values

    def _follow_rate(self, optimizer: Any) -> None:
        rate = optimizer._learning_rate
        if not isinstance(rate, keras.Variable):
            return
        mark = self.mark(rate)
        if self._rate_mark is None or mark != self._rate_mark:
            self._rate_mark = mark
            self._weights.set_rate(float(rate.numpy()))
