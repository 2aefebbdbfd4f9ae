"""Loading many modules at once, without looking for garbage among them."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def quick_loading() -> Iterator[None]:
    """Import what a task needs: nothing of it is garbage, and collections would look at all of it
    again and again, a tenth of the time that importing takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
