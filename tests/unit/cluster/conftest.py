"""What tests of resolvers share."""

from collections.abc import Callable

import pytest


@pytest.fixture
def machine_has_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes resolvers find so many GPUs on this machine."""

    def pretend(count: int) -> None:
        monkeypatch.setattr("ropewalk.cluster.resolvers.resolver.count_gpus", lambda: count)

    return pretend
