"""Which Python can run a task of a cluster without the windlass command."""

import pytest

from windlass.core.errors import ConfigurationError
from windlass.worker.plain_program import check_python


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 11, 9), (3, 12, 3), (3, 13, 0)])
def test_a_python_that_starts_threads_at_exit_is_taken(version: tuple[int, ...]) -> None:
    check_python(version)


@pytest.mark.parametrize("version", [(3, 12, 0), (3, 12, 2)])
def test_one_that_does_not_is_refused_with_what_to_do(version: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"Python 3\.12\.[02] .* `windlass run`"):
        check_python(version)
