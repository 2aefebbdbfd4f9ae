"""Steps of frameworks' optimizers that share nothing, noted to explain a job whose step stays 0.

A program may make a strategy and then train beside it: with an optimizer that was not handed to a
bridge, or of a model that was made outside of a scope. Its numbers are right for one process, and
nobody learns from anybody. The names of such optimizers are noted here, and whether this process
has made a step that the job counts; a program that ends with the one and without the other says so.
"""

_MOST = 8
_names: dict[str, None] = {}  # in order
_shared: list[bool] = []  # at most one


def note(optimizer: str) -> None:
    """Note that an optimizer of this name has made a step of its own."""
    if len(_names) < _MOST:
        _names[optimizer] = None


def note_shared() -> None:
    """Note that this process has made a step under a strategy."""
    if not _shared:
        _shared.append(True)


def forget() -> None:
    """Begin anew: another program runs in this process."""
    _names.clear()
    _shared.clear()


def warning() -> str:
    """Return the warning to show when the program has ended; empty: there is none."""
    if not _names or _shared:
        return ""
    return (
        f"{', '.join(_names)} made steps, and none of them was shared: this process has trained "
        "alone, and the job's global step counts nothing of it. An optimizer of Keras shares what "
        "it trains if it or the model is made in strategy.scope(); one of PyTorch or optax if it "
        "is handed to rw.training.torch.DistributedOptimizer or rw.training.jax (docs/bridges.md)"
    )
