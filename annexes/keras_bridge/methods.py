"""Methods that stand in front of some of a model that is distributed.

The model keeps its class, so callbacks, files and ``isinstance`` stay as they are; of this one
object some methods are replaced. Keras makes the functions of its steps when they are needed
(``make_train_function``): that is where a step is changed, and where a model without weights until
its first batch begins to share them.
"""

import functools
import inspect
import logging
from typing import Any

from ...core.checkpoint.export import JOB_STATE
from ...core.errors import CollectiveMismatchError
from ...core.process.tracebacks import own_errors
from ...distribute.strategies.strategy import Strategy
from ...training.in_sync import workers_in_sync
from ...training.own_optimizer import Deltas
from .callbacks import EndsWithChief, FitEnd, JobCallback, arguments_here
from .files import writers
from .frameworks import build_on_first_batch, framework_of_keras, keras
from .in_sync import refuse_sums
from .inputs import as_input
from .job_totals import InSync, OnServers
from .loop_state import COMPILED
from .loops import group_of, loop_of
from .replica_devices import placement_of
from .replicas import Replicas
from .step_logs import StepLogs
from .weights import SharedWeights, has_its_weights
from .worker_seeds import own_numbers

log = logging.getLogger(__name__)

ATTRIBUTE = "_ropewalk"
"""Attribute of a model: its :class:`DistributedMethods`."""


class DistributedMethods:
    """Methods of a model under a strategy.

    Attributes:
        strategy: Strategy of the model.
        options: Options that were given.
        weights: Weights that are shared; None: the model is not built.
        loops: Whether its ``train_step`` has optimizers besides the one it is compiled with: each
            shares what it trains by itself.
    """

    def __init__(
        self, model: Any, strategy: Strategy, *, deltas: Deltas, mean: bool, name: str
    ) -> None:
        self._model = model
        self.strategy = strategy
        self.options: dict[str, Any] = {"deltas": deltas, "mean": mean, "name": name}
        self.weights: SharedWeights | None = None
        self.loops = False
        self._is_chief = bool(strategy.extended.should_checkpoint)
        self._totals: InSync | OnServers | None = None
        self._step_logs: StepLogs | None = None  # where there are totals
        self._in_evaluation = False  # else an epoch of training is under way
        self._epoch_began = 0  # with so many steps made
        self._promised: int | None = None  # steps of an epoch
        self._fits = 0  # that have begun
        self._in_fit = False
        self._fit_end: FitEnd | None = None  # of asynchronous workers
        self._replicas: Replicas | None = None
        count = len(strategy.extended.replica_devices)
        self._placement = placement_of(strategy) if count > 1 else None
        if self._placement is not None:
            self._replicas = Replicas(model, count, self._placement)
            if getattr(self._placement, "distinct", False) and framework_of_keras() != "torch":
                model.jit_compile = False  # XLA compiles for one device of TensorFlow
        if not is_built(model):
            build_on_first_batch(model)
        elif not has_own_step(model):  # else it may be given optimizers of its own after compile
            self._share()
        model.train_function = model.test_function = model.predict_function = None
        # Beside Keras' tracking of attributes, which is for layers and variables.
        for attribute, value in (
            (ATTRIBUTE, self),
            ("fit", self._fit),
            ("evaluate", self._evaluate),
            ("load_weights", self._load_weights),
            ("set_weights", self._set_weights),
            ("make_train_function", self._make_train_function),
            ("make_test_function", self._make_test_function),
            ("make_predict_function", self._make_predict_function),
            ("_get_metrics_result_or_logs", self._metrics_of_job),
            *writers(model, strategy, self._tell_of_saved_file).items(),
        ):
            object.__setattr__(model, attribute, value)

    def _tell_of_saved_file(self) -> None:
        if self.weights is not None:
            self.weights.warnings.saved_file(self.weights.optimizer, self.weights.steps)

    @property
    def checkpointed(self) -> SharedWeights | None:
        """Weights of the model, which ``rw.train.Checkpoint`` saves."""
        if self.weights is None and is_built(self._model):
            self.share()
        return self.weights

    def share(self) -> None:
        """Share the weights of the model, which is built. A second time does nothing."""
        if self.weights is None:
            optimizers = optimizers_of(self._model)
            self.loops = any(optimizer is not self._model.optimizer for optimizer in optimizers)
            if self.loops:
                object.__setattr__(self._model.optimizer, COMPILED, False)
            self.weights = self._new_weights()
            if self.loops and framework_of_keras() == "jax":
                for optimizer in optimizers:
                    if optimizer.built:  # while Keras' epochs run, variables have no values
                        loop_of(optimizer, self.strategy)
            if workers_in_sync(self.strategy) > 1:
                self._totals = InSync(self.strategy)
            elif self.strategy.extended.num_input_pipelines > 1:
                parts = (self.options["name"], self._model.name, JOB_STATE)
                name = "/".join(filter(None, parts))
                chief = {"is_chief": self._is_chief}
                self._totals = OnServers(self.strategy, f"{name}/metrics", **chief)
                self._fit_end = FitEnd(self.strategy, f"{name}/fit_ended", **chief)
            if self._totals is not None:
                self._step_logs = StepLogs(self._model)

    def _new_weights(self) -> SharedWeights:
        group = group_of(self._model) if self.loops else None
        return SharedWeights(
            self._model if group is None else group,
            self.strategy,
            **self.options,
            placement=self._placement,
            steps=None if group is None else group.steps,
        )

    def _share_again(self, before: SharedWeights) -> SharedWeights:
        """Share the weights of a model that was compiled with another optimizer.

        Its state begins anew, as with Keras alone, and is this worker's: the servers keep one state
        of each weight.
        """
        before.refresh()
        weights = self.weights = self._new_weights()
        weights.steps = before.steps
        return weights

    def _share(self) -> SharedWeights:
        self.share()
        assert self.weights is not None  # noqa: S101 - shared
        return self.weights

    def _refresh(self) -> None:
        """Have the values of now; before the first batch there may be none."""
        if self.weights is not None:
            self.weights.refresh()
            self._end_others()
        elif is_built(self._model):
            self._share()

    def _end_others(self) -> None:
        """End the others' training, if the chief goes on with weights that its program has set."""
        if self.weights is None or not self.weights.holds or self._in_fit or not self._fits:
            return
        if self._fit_end is not None:
            self._fit_end.tell(self._fits)
            self.weights.shared.held.others_were_told = True

    # -- what programs call ------------------------------------------------------------------

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' ``fit`` with the callbacks that run here; it ends with the values of now."""
        fit = type(self._model).fit.__get__(self._model)
        bound = arguments_here(
            fit,
            args,
            kwargs,
            is_chief=self._is_chief,
            in_sync=workers_in_sync(self.strategy) > 1,
            take_input=lambda data, steps: as_input(data, self.strategy, steps),
            job=self._job_callbacks,
        )
        self._promised = bound.arguments.get("steps_per_epoch")
        self._fits += 1
        self._refresh()
        if self.weights is not None:
            self.weights.shared.held.give_again(self.weights.variables)
        self._in_fit = True
        try:
            with own_numbers(self.strategy):
                history = fit(*bound.args, **bound.kwargs)
        finally:
            self._in_fit = False
        self._refresh()
        return history

    def _job_callbacks(self, first_epoch: int) -> list[Any]:
        ours: list[Any] = [JobCallback(self.strategy, first_epoch, self._begin_epoch)]
        if not self._is_chief and workers_in_sync(self.strategy) == 1:
            ours.append(EndsWithChief(lambda: self._fit_end, self._fits + 1))
        return ours

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' ``evaluate``, of what a strategy's program gives it."""
        evaluate = type(self._model).evaluate.__get__(self._model)
        bound = inspect.signature(evaluate).bind(*args, **kwargs)
        arguments = bound.arguments
        if "x" in arguments:
            arguments["x"] = as_input(arguments["x"], self.strategy, arguments.get("steps"))
        before, self._in_evaluation = self._in_evaluation, True  # maybe by a callback of fit
        try:
            return evaluate(*bound.args, **bound.kwargs)
        finally:
            self._in_evaluation = before

    def _load_weights(self, *args: Any, **kwargs: Any) -> None:
        """Keras' ``load_weights``, whose file may have a state of the optimizer, too."""
        type(self._model).load_weights(self._model, *args, **kwargs)
        if self.weights is not None:
            self._go_on(self.weights)
        self._were_set()

    def _go_on(self, weights: SharedWeights) -> None:
        """Have the job's optimizer go on as a loaded file says, or say that it does not."""
        if weights.steps:
            weights.warnings.loaded_file(weights.optimizer, weights.steps)
        elif self._in_fit and (made := int(weights.optimizer.iterations)):
            weights.go_on_from(made)  # of BackupAndRestore

    def _set_weights(self, weights: Any) -> None:
        """Keras' ``set_weights``."""
        type(self._model).set_weights(self._model, weights)
        self._were_set()

    def _were_set(self) -> None:
        """Note that the program has set weights; after a ``fit`` others hear of it at once."""
        if self.weights is None:
            return
        self.weights.were_set = True
        if self._is_chief and self._fit_end is not None and self._fits and not self._in_fit:
            self._refresh()

    # -- what Keras calls --------------------------------------------------------------------

    def _make_train_function(self, force: bool = False) -> None:
        if self._model.train_function is not None and not force:
            return
        if self.options["mean"]:
            refuse_sums(self._model, self.strategy)
        weights, model = self._share(), self._model
        if self.loops:  # each pushes by itself
            if framework_of_keras() == "tensorflow":
                model.jit_compile = False  # XLA refuses what a graph asks Python for
            type(model).make_train_function(model, True)
            model.train_function = self._counting(model.train_function)
        else:
            if not weights.can_take_optimizer():
                weights = self._share_again(weights)
            weights.take_optimizer()
            weights.backend.make_train_function()
        model.train_function = self._stepping(model.train_function)

    def _counting(self, function: Any) -> Any:
        """Wrap a function of Keras' whose calls are steps of this worker."""

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            logs = function(*args, **kwargs)
            if self.weights is not None:
                self.weights.steps += self._model.steps_per_execution
                self.weights.were_set = False
            return logs

        return step

    def _make_test_function(self, force: bool = False) -> Any:
        self._refresh()
        model = self._model
        if model.test_function is not None and not force:
            return model.test_function
        if self.weights is None:
            return type(model).make_test_function(model, force)
        self.weights.backend.make_test_function()
        model.test_function = self._stepping(model.test_function)
        return model.test_function

    def _make_predict_function(self, force: bool = False) -> Any:
        self._refresh()
        model = self._model
        if model.predict_function is not None and not force:
            return model.predict_function
        if self.weights is None:
            return type(model).make_predict_function(model, force)
        self.weights.backend.make_predict_function()
        model.predict_function = self._stepping(model.predict_function)
        return model.predict_function

    def _stepping(self, function: Any) -> Any:
        """Wrap a function of Keras' whose calls of the model are divided among replicas."""
        function = own_errors()(function)
        return function if self._replicas is None else self._replicas.stepping(function)

    def _begin_epoch(self) -> None:
        self._epoch_began = self.weights.steps if self.weights is not None else 0

    def _metrics_of_job(self, logs: Any) -> Any:
        """Replace the metrics of an epoch, or of an evaluation, by the job's."""
        model, in_epoch = self._model, not self._in_evaluation
        if in_epoch and self._made < (self._promised or 0):
            log.warning(
                "%s; its input has no more, and what there was has counted. Other workers go on "
                "without it: give each as many batches, or repeat the input",
                self._what_ended(in_epoch=True),
            )
        step_logs, others = self._step_logs, {}
        if step_logs is not None:
            others = step_logs.others(logs, in_epoch=in_epoch)
        if isinstance(self._totals, InSync):
            try:
                own = self.weights.own_state() if in_epoch and self.weights is not None else ()
                others = self._totals.combine(model.metrics_variables, own, others)
            except CollectiveMismatchError as error:
                raise CollectiveMismatchError(
                    f"{self._what_ended(in_epoch=in_epoch)}, and another worker has not: {error}"
                ) from error
        elif isinstance(self._totals, OnServers) and in_epoch:
            self._totals.combine(model.metrics_variables)
        results = type(model)._get_metrics_result_or_logs(model, logs)
        if results is not logs or step_logs is None:
            return results
        return step_logs.of_job(logs, others, in_epoch=in_epoch)

    def _what_ended(self, *, in_epoch: bool) -> str:
        task = self.strategy.extended.task_name.replace("/replica:0", "")
        if not in_epoch or self.weights is None:
            return f"{task} has ended an evaluation (in sync all evaluate together)"
        promised = "" if self._promised is None else f" of {self._promised}"
        return f"{task} has ended an epoch after {self._made}{promised} steps"

    @property
    def _made(self) -> int:
        """Steps of this epoch."""
        return self.weights.steps - self._epoch_began if self.weights is not None else 0


def has_own_step(model: Any) -> bool:
    """Return whether a model has a ``train_step`` that the program wrote."""
    return type(model).train_step is not keras.Model.train_step


def optimizers_of(model: Any) -> list[Any]:
    """Find the optimizers that a ``train_step`` of the program's has as attributes, as a GAN
    has.
    """
    held: list[Any] = []
    for value in vars(model).values():
        held.extend(value.values() if isinstance(value, dict) else [])
        held.extend(value if isinstance(value, list | tuple) else [value])
    kinds = {
        id(optimizer): optimizer
        for optimizer in held
        if isinstance(optimizer, keras.optimizers.Optimizer)
    }
    return list(kinds.values()) if has_own_step(model) else []


def is_built(model: Any) -> bool:
    """Return whether a model has all of its weights.

    One without a ``call``, such as a GAN whose ``train_step`` calls its networks, has those of its
    layers.
    """
    has_call = type(model).call is not keras.Model.call
    parts = model._flatten_layers(include_self=has_call)
    return bool(model.built or not has_call) and all(map(has_its_weights, parts))
