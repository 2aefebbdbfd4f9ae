"""``strategy.scope()`` and ``compile(distribute=strategy)``, as in programs for tf.distribute.

A model that is made in a scope belongs to its strategy, and ``compile`` distributes it. For that
``keras.Model.__init__`` notes the current strategy and ``compile`` takes ``distribute=``; outside
of scopes, and without that argument, both do what they did. They are changed where Keras defines
them, since it compares a model's ``compile`` with its own when it loads a file, and when a program
has made a strategy and imported Keras, in whatever order (``core/process/frameworks.py``). In the
same way ``keras.optimizers.Optimizer`` notes its scope, for loops that programs write
(``loops.py``).

Source: tf.distribute, of which Keras 2 asked for the strategy at the same two places.
"""

import functools
from collections.abc import Callable
from typing import Any

from ...core.errors import ConfigurationError
from ...distribute.base.contexts import default_strategy, top_frame
from ...distribute.strategies.strategy import Strategy
from .loop_state import COMPILED, LOOP, MADE_UNDER, plainly

_CHANGED = "_ropewalk_scopes"


def current_strategy() -> Any:
    """Find the strategy whose scope this thread is in; None: it is in none."""
    frame = top_frame()
    default: object = default_strategy()
    if frame is None or frame.replica is not None or frame.strategy is default:
        return None
    return frame.strategy


def follow_scopes() -> None:
    """Change ``keras.Model``; a second time does nothing."""
    import keras  # what is imported at this moment; `frameworks` may be what imports it

    model = keras.Model
    if _CHANGED in vars(model):
        return
    compile_model = model.compile

    @functools.wraps(compile_model)
    def compiled(self: Any, *args: Any, distribute: Strategy | None = None, **kwargs: Any) -> None:
        strategy = strategy_for(self, distribute)
        compile_model(self, *args, **kwargs)
        if strategy is not None:
            _distribute(self, strategy)

    _note_strategy_of_all(model, _note_model)
    owner = next(kind for kind in model.__mro__ if "compile" in vars(kind))
    owner.compile = compiled
    after_build = model._post_build

    @functools.wraps(after_build)
    def built(self: Any) -> None:
        after_build(self)
        strategy = getattr(self, MADE_UNDER, None)
        if strategy is not None:
            strategy.scope_was_left()

    model._post_build = built
    follow_optimizers(keras)
    if keras.backend.backend() == "torch":
        from .torch_loops import follow_torch_optimizers

        follow_torch_optimizers()
    setattr(model, _CHANGED, True)


def _note_strategy_of_all(kind: Any, note: Callable[[Any, Strategy], None]) -> None:
    """Have every object of a class know the strategy in whose scope it is made.

    Args:
        kind: The class, whose constructor is changed.
        note: Called with each object that is made in a scope, and the strategy.
    """
    make = kind.__init__

    @functools.wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        strategy = current_strategy()
        object.__setattr__(self, MADE_UNDER, strategy)
        if strategy is not None:
            note(self, strategy)

    kind.__init__ = made


def _note_model(model: Any, strategy: Strategy) -> None:
    from .loops import share_models
    from .shared_variables import shared_variables

    shared_variables(strategy).add_model(model)
    strategy.when_scopes_end("keras", lambda: share_models(strategy))


def _note_optimizer(optimizer: Any, strategy: Strategy) -> None:
    from .shared_variables import shared_variables

    shared_variables(strategy).optimizers.add(optimizer)


def follow_optimizers(keras: Any) -> None:
    """Change the base class of Keras' optimizers: a loop of a program's own shares what they train.

    Outside of scopes, and in the steps that ``fit`` makes, they do what they did.
    """
    optimizer = keras.optimizers.Optimizer
    _note_strategy_of_all(optimizer, _note_optimizer)
    build, apply, stateless_apply = optimizer.build, optimizer.apply, optimizer.stateless_apply

    @functools.wraps(build)
    def built(self: Any, variables: Any) -> None:
        build(self, variables)
        is_shared = vars(self).get(LOOP) is not None or vars(self).get(COMPILED)
        if keras.backend.backend() == "jax" and not is_shared:
            from .loops import loop_of, strategy_of

            self.built = True
            strategy = strategy_of(self)
            if strategy is not None:
                loop_of(self, strategy).note_built()

    @functools.wraps(apply)
    def applied(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        from .loops import apply as apply_shared

        trained = None if trainable_variables is None else list(trainable_variables)
        if not apply_shared(self, grads, trained):
            apply(self, grads, trained)

    @functools.wraps(stateless_apply)
    def stateless_applied(
        self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        from .loops import loop_of, require_one_replica, strategy_of

        on_jax = keras.backend.backend() == "jax"
        strategy = strategy_of(self) if self.built and on_jax else None
        if strategy is None:
            with plainly():
                return stateless_apply(self, optimizer_variables, grads, trainable_variables)
        require_one_replica(self, strategy, "a function that JAX compiles")
        loop = loop_of(self, strategy)
        return loop.stateless_apply(optimizer_variables, grads, trainable_variables)

    optimizer.build = built
    optimizer.apply, optimizer.stateless_apply = applied, stateless_applied


def strategy_for(model: Any, given: Any) -> Any:
    """Find the strategy that a model is to be distributed under when it is compiled; None: it is
    not.

    Args:
        model: The Keras model.
        given: The argument of ``compile(distribute=…)``; None: there was none.

    Raises:
        ConfigurationError: ``given`` is no strategy; or the model was made elsewhere than in the
            scope it is compiled in, or under another strategy.
    """
    if given is not None and not isinstance(given, Strategy):
        raise ConfigurationError(
            f"distribute={given!r} is no strategy of Ropewalk; give compile one, such as "
            "rw.distribute.ParameterServerStrategy()"
        )
    made_under, current = getattr(model, MADE_UNDER, None), current_strategy()
    if given is not None:
        for other in (made_under, current):
            if other is not None and other is not given:
                raise ConfigurationError(
                    f"{model.name!r} belongs to the scope of a {type(other).__name__}, and compile "
                    f"was given another strategy, a {type(given).__name__}"
                )
        return given
    if current is not None and made_under is not current:
        where = (
            f"in the scope of another {type(made_under).__name__}"
            if made_under
            else "outside of any scope"
        )
        raise ConfigurationError(
            f"{model.name!r} was made {where} and is compiled in the scope of a "
            f"{type(current).__name__}: its weights were not created there. Make the model in the "
            "same `with strategy.scope():`, or compile it outside with distribute=strategy"
        )
    return made_under


def _distribute(model: Any, strategy: Strategy) -> None:
    from .methods import ATTRIBUTE
    from .model import distribute
    from .shared_variables import shared_variables

    if model.optimizer is not None:
        object.__setattr__(model.optimizer, COMPILED, True)
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        shared_variables(strategy).optimizers.difference_update([model.optimizer, inner])
    methods = getattr(model, ATTRIBUTE, None)
    if methods is None:
        distribute(model, strategy)
    elif methods.strategy is not strategy:
        raise ConfigurationError(
            f"{model.name!r} is distributed under a {type(methods.strategy).__name__} already"
        )
