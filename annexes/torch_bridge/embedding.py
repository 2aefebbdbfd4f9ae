"""Tables of ``rw.embedding`` as a module of PyTorch.

The module has no parameters: a batch's rows are leaves of the graph, and what ``backward`` finds
for them waits here until a step pushes it. That is the step of the
:class:`~ropewalk.training.torch.DistributedOptimizer` of the module that has this one, in the same
message as the gradients of the parameters, or ``apply_gradients`` of a program that has none.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ...core.errors import ConfigurationError
from ...distribute.optimizer import Optimizer
from ...distribute.strategies.default import get_strategy
from ...distribute.strategies.strategy import Strategy
from ...training.array_store import PushBeside
from ...training.extras import require
from ..embedding.features.config import FeatureConfig
from ..embedding.features.look_ahead import LookAhead
from ..embedding.features.tables import Embeddings, Lookup, WaitingGradients
from .jagged import KeyedTensor, ragged_of
from .tensors import to_array, to_tensor

torch: Any = require("torch", "torch")

__all__ = ["EmbeddingBagCollection"]

Batch = TypeVar("Batch")


class EmbeddingBagCollection(torch.nn.Module):  # type: ignore[misc]
    """Looks up the rows of all features of a batch. As ``torchrec.EmbeddingBagCollection``.

    ::

        users = rw.embedding.TableConfig("users", dim=16, combiner="sum")
        embeddings = rw.training.torch.EmbeddingBagCollection(
            [rw.embedding.FeatureConfig("user", users)], rw.optimizers.Adagrad(0.1), strategy
        )
        rows = embeddings(jagged)["user"]       # (examples, 16)

    The tables are on the servers, in no ``state_dict``, and in the job's checkpoints. Gradients of
    several calls of ``backward`` add up until a step; ``zero_grad`` forgets them.

    Args:
        features: The features, or tables of theirs that exist already.
        optimizer: Optimizer of tables that have none: one of ``rw.optimizers``.
        strategy: Strategy under which the tables are; None: the current one.

    Attributes:
        embeddings: The tables.
        waiting: Gradients that no step has applied yet.

    Raises:
        MissingExtraError: PyTorch is not installed.
        ConfigurationError: As :class:`~ropewalk.embedding.Embeddings`.
    """

    def __init__(
        self,
        features: Iterable[FeatureConfig] | Embeddings,
        optimizer: Optimizer | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(features, Embeddings):
            with (strategy if strategy is not None else get_strategy()).scope():
                features = Embeddings(features, optimizer)
        self.embeddings = features
        self.waiting = WaitingGradients(
            "give the module that has this EmbeddingBagCollection to DistributedOptimizer(…, "
            "module=module), or call its apply_gradients"
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, features: Any, weights: Mapping[str, Any] | None = None) -> KeyedTensor:
        """Look up the rows of each feature, combined for each example.

        Args:
            features: :class:`KeyedJaggedTensor`, TorchRec's, or by name of the feature integers of
                shape ``(examples,)`` or ``(examples, n)``, or ``rw.embedding.Ragged``, also with
                the offsets of ``torch.nn.EmbeddingBag``. Other keys of a jagged tensor are left
                out.
            weights: Weights by name of the feature: floats of the same form, or a flat array beside
                ``Ragged`` ids; None: those of the jagged tensor, or 1. They get no gradient.

        Returns:
            Rows by name, on the device of the ids: shape ``(examples, dim)``, or ``(examples,
            max_sequence_length, dim)``.
            max_sequence_length, dim)``.

        Raises:
            KeyError: There is no such feature.
            TypeError: Ids are no integers.
            ValueError: Weights do not fit the ids.
            ShapeMismatchError: An id is not in ``[0, vocabulary_size)``.
        """
        ids, scales, device = self._wanted(features, weights)
        rows = self.embeddings.lookup(ids, scales)
        return KeyedTensor({name: self._leaf(rows, name, device) for name in rows})

    def look_ahead(
        self, batches: Iterable[Batch], features: Callable[[Batch], Any], *, count: int = 1
    ) -> LookAhead[Batch]:
        """Batches, each of which has its rows looked up while steps before it compute.

        See :meth:`ropewalk.embedding.Embeddings.look_ahead`.

        Args:
            batches: A ``DataLoader`` or any other iterable.
            features: Tells what of a batch :meth:`forward` gets.
            count: Number of batches that are read and looked up ahead, at most 64.

        Raises:
            ConfigurationError: A table has ``staleness_reads``, or this task several devices.
            ValueError: ``count`` is out of range.
        """
        return self.embeddings.look_ahead(
            batches, lambda batch: self._wanted(features(batch), None)[:2], count=count
        )

    def _wanted(
        self, features: Any, weights: Mapping[str, Any] | None
    ) -> tuple[Mapping[str, Any], Mapping[str, Any] | None, Any]:
        """Collect ids and weights by name, on the host, and the device that the rows go to."""
        if isinstance(features, Mapping):
            ids = {name: _on_host(value) for name, value in features.items()}
            if weights is not None:
                weights = {name: _on_host(value) for name, value in weights.items()}
            return ids, weights, _device_of(features.values())
        names = {feature.name for feature in self.embeddings.features}
        jagged, scales = ragged_of(features)
        chosen = {name: value for name, value in jagged.items() if name in names}
        if weights is None and scales is not None:
            weights = {name: scales[name] for name in chosen}
        return chosen, weights, features.values().device

    def _leaf(self, lookup: Lookup, name: str, device: Any) -> Any:
        """Make a leaf of the rows of a feature, whose gradient waits once ``backward`` has found
        it.
        """
        rows = to_tensor(lookup[name]).to(device)
        if not torch.is_grad_enabled():
            return rows
        rows.requires_grad_()

        def keep(leaf: Any) -> None:
            gradient, leaf.grad = leaf.grad, None
            self.waiting.add(lookup, {name: to_array(gradient)})

        rows.register_post_accumulate_grad_hook(keep)
        return rows

    def apply_gradients(self, scale: float | None = None) -> None:
        """Train the tables by what ``backward`` has found since the last step.

        In ``strategy.run`` it travels with the push of the step; outside it is pushed at once.

        Args:
            scale: Number to multiply the gradients by; None: 1.

        Raises:
            NonFiniteGradientError: A gradient was NaN or infinite many steps in a row.
            RopewalkError: What the session with the servers raises.
        """
        self.waiting.apply(scale)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Forget the gradients that wait."""
        self.waiting.clear()


class Collections:
    """The collections of a module, as the steps of its optimizer train them.

    Args:
        module: Module to look through; None: there are none.
        strategy: Strategy of the optimizer.

    Raises:
        ConfigurationError: A collection's tables are another strategy's.
    """

    def __init__(self, module: Any, strategy: Strategy) -> None:
        modules = () if module is None else module.modules()
        self._all = [module for module in modules if isinstance(module, EmbeddingBagCollection)]
        for collection in self._all:
            if collection.embeddings.strategy is not strategy:
                raise ConfigurationError(
                    "an EmbeddingBagCollection of this module has tables of another strategy than "
                    "its optimizer; make it with EmbeddingBagCollection(…, strategy=strategy)"
                )

    def __len__(self) -> int:
        return len(self._all)

    def clear(self) -> None:
        """Forget the gradients that wait."""
        for collection in self._all:
            collection.zero_grad()

    def push(self, optimizer: Any) -> PushBeside | None:
        """Make what pushes the gradients that wait, in a step of an optimizer; None: there are
        none.

        Args:
            optimizer: A GradScaler has given it ``grad_scale``, or there is none.

        Raises:
            ConfigurationError: A GradScaler has taken its scale out of the parameters' gradients
                alone.
        """
        waiting = [collection for collection in self._all if len(collection.waiting)]
        if not waiting:
            return None
        scaled_by = getattr(optimizer, "grad_scale", None)
        if scaled_by is None and getattr(optimizer, "found_inf", None) is not None:
            raise ConfigurationError(
                "scaler.unscale_(optimizer) does not know the gradients of an "
                "EmbeddingBagCollection, which have its scale still; leave it out, and "
                "scaler.step(optimizer) takes the scale out of all"
            )
        own = 1.0 if scaled_by is None else 1.0 / float(scaled_by)

        def push(scale: float | None) -> None:
            factor = own if scale is None else own * scale
            for collection in waiting:
                collection.apply_gradients(None if factor == 1.0 else factor)

        return push


def _on_host(ids: Any) -> Any:
    if isinstance(ids, torch.Tensor):
        return to_array(ids)
    return ids


def _device_of(features: Iterable[Any]) -> Any:
    devices = (feature.device for feature in features if isinstance(feature, torch.Tensor))
    return next(devices, torch.device("cpu"))
