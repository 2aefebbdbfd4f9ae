"""The tree of errors: as drawn, and with the exit codes that launchers rely on."""

import re

import pytest

from helpers.rows import row
from ropewalk.core import errors
from ropewalk.core.exit_codes import ExitCode, is_retryable


def _all_classes(base: type[errors.RopewalkError]) -> list[type[errors.RopewalkError]]:
    below = [cls for child in base.__subclasses__() for cls in _all_classes(child)]
    return [base, *below]


CLASSES = [cls for cls in _all_classes(errors.RopewalkError) if cls.__module__ == errors.__name__]


def _drawn_parents() -> dict[str, str | None]:
    """Class → parent, as the tree in the module's docstring shows them."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^ {4}[ │├└─]*(\w+Error)\b", line)
        if found is None:
            continue
        column, name = found.start(1), found[1]
        path = [(at, above) for at, above in path if at < column]
        parents[name] = path[-1][1] if path else None
        path.append((column, name))
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    real = {
        cls.__name__: next(
            (base.__name__ for base in cls.__bases__ if issubclass(base, errors.RopewalkError)),
            None,
        )
        for cls in CLASSES
    }
    assert _drawn_parents() == real


def test_an_error_reads_as_its_message_and_keeps_its_facts_as_strings() -> None:
    for cls in CLASSES:
        with row(cls):
            error = cls("ps 1 has 3 of 4 rows", ps=1, rows=(3, 4))
            assert str(error) == error.message == "ps 1 has 3 of 4 rows"
            assert error.fields == {"ps": "1", "rows": "(3, 4)"}


def test_an_unknown_variable_is_a_key_error_that_does_not_quote_its_message() -> None:
    error = errors.UnknownVariableError("nobody defined 'w'")
    assert isinstance(error, KeyError)
    assert str(error) == "nobody defined 'w'"


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        pytest.param(errors.ConfigurationError, ValueError, id="cluster or configuration"),
        pytest.param(errors.TFConfigError, ValueError, id="TF_CONFIG, as TensorFlow raises"),
        pytest.param(errors.CheckpointError, ValueError, id="not a valid checkpoint"),
        pytest.param(errors.DefinitionMismatchError, ValueError, id="another shape of that name"),
        pytest.param(errors.NonFiniteGradientError, ValueError, id="check_numerics"),
        pytest.param(errors.CollectiveMismatchError, ValueError, id="shapes differ in a reduction"),
        pytest.param(errors.ShapeMismatchError, ValueError, id="shape"),
        pytest.param(errors.UnknownVariableError, KeyError, id="unknown variable"),
    ],
)
def test_what_users_catch_by_its_builtin_class_is_one(
    cls: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(cls, builtin)


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.ConfigurationError, ExitCode.USAGE),
        (errors.TFConfigError, ExitCode.USAGE),
        (errors.AddressInUseError, ExitCode.ADDRESS_IN_USE),
        (errors.CheckpointError, ExitCode.CHECKPOINT_UNUSABLE),
        (errors.DefinitionMismatchError, ExitCode.INCOMPATIBLE),
        (errors.ProtocolMismatchError, ExitCode.INCOMPATIBLE),
        (errors.NonFiniteGradientError, ExitCode.REFUSED),
        (errors.LimitExceededError, ExitCode.REFUSED),
        (errors.ProgramError, ExitCode.PROGRAM_FAILED),
        (errors.PeerLostError, ExitCode.PEER_LOST),
        (errors.JoinTimeoutError, ExitCode.JOIN_TIMEOUT),
        (errors.JobStoppedError, ExitCode.DRAINED),
    ],
    ids=lambda value: value.name if isinstance(value, ExitCode) else value.__name__,
)
def test_an_error_ends_a_process_with_the_code_of_its_branch(
    cls: type[errors.RopewalkError], code: ExitCode
) -> None:
    assert cls.exit_code is code


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if issubclass(cls, errors.RetryableError)])
def test_what_a_restart_may_cure_exits_above_127(cls: type[errors.RopewalkError]) -> None:
    assert is_retryable(cls.exit_code)


def test_a_message_of_a_stranger_cannot_move_the_cursor_or_name_the_window() -> None:
    error = errors.RopewalkError("\x1b]0;title\x07\x9b2J two\r\n\tlines")
    assert error.message == str(error) == " two\ufffd\n\tlines"
