"""Values of a step that model_fn gives to hooks and summaries by name."""

from contextvars import ContextVar
from typing import Any

_recorded: ContextVar[dict[str, Any] | None] = ContextVar("ropewalk_recorded", default=None)


def record(name: str, value: Any) -> None:
    """Give a value of this batch a name, for hooks and summaries; in place of
    ``tf.summary.scalar(name, value)``.

    With several replicas those of the first one count.

    Raises:
        RuntimeError: Outside of a model_fn.
    """
    values = _recorded.get()
    if values is None:
        raise RuntimeError("rw.estimator.record is of use in a model_fn, which an Estimator calls")
    values[name] = value


class Recording:
    """Collects what :func:`record` is given in a block."""

    def __enter__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        self._token = _recorded.set(values)
        return values

    def __exit__(self, *_: object) -> None:
        _recorded.reset(self._token)
