"""The one table between our errors and gRPC's: complete, and lossless both ways."""

from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from helpers.rows import row
from ropewalk.core import errors
from ropewalk.core.wire.error_table import (
    STATUS_OF,
    from_detail,
    from_rpc_error,
    status_of,
    to_detail,
)
from ropewalk.proto.v1 import errors_pb2

CLASSES = sorted(STATUS_OF, key=lambda cls: cls.__name__)


class FakeRpcError(grpc.RpcError):
    """A failed call, as grpc raises it."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str = "",
        metadata: Sequence[tuple[str, bytes]] | None = (),
    ) -> None:
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._metadata


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _over_the_wire(error: Exception) -> tuple[int, errors.RopewalkError]:
    code, message, details = status_of(error)
    metadata = [("grpc-status-details-bin", details)]
    failure = FakeRpcError(_CODES[code], message, metadata)
    return code, from_rpc_error(failure, peer="/job:ps/task:1", doing="push")


def test_the_codes_are_those_of_grpc() -> None:
    assert set(STATUS_OF.values()) <= set(_CODES)


def test_details_that_are_not_a_status_are_passed_over() -> None:
    metadata = [("grpc-status-details-bin", b"\xff")]
    failure = FakeRpcError(grpc.StatusCode.UNAVAILABLE, "gone", metadata)
    assert type(from_rpc_error(failure, peer="p", doing="pull")) is errors.PeerLostError


def test_every_error_class_has_one_row_and_there_is_no_other_row() -> None:
    def below(cls: type[errors.RopewalkError]) -> set[type[errors.RopewalkError]]:
        children = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]
        return {cls}.union(*(below(child) for child in children))

    assert set(STATUS_OF) == below(errors.RopewalkError)


def test_a_detail_keeps_class_message_and_fields() -> None:
    for cls in CLASSES:
        with row(cls):
            back = from_detail(to_detail(cls("row 7 of 5: größer", row=7, rows=5)))
            assert type(back) is cls
            assert back.message == "row 7 of 5: größer"
            assert back.fields == {"row": "7", "rows": "5"}


def test_an_aborted_call_raises_the_same_error_at_the_caller() -> None:
    for cls in CLASSES:
        with row(cls):
            code, back = _over_the_wire(cls("no room for 'w'", limit=3))
            assert code == STATUS_OF[cls]
            assert type(back) is cls
            assert (back.message, back.fields) == ("no room for 'w'", {"limit": "3"})


def test_an_error_that_is_not_ours_keeps_its_class_name_in_the_text() -> None:
    code, back = _over_the_wire(ZeroDivisionError("division by zero"))
    assert code == grpc.StatusCode.INTERNAL.value[0]
    assert type(back) is errors.RopewalkError
    assert back.message == "ZeroDivisionError: division by zero"


def test_a_subclass_from_elsewhere_travels_as_an_internal_error() -> None:
    class Homemade(errors.RefusedError):
        pass

    code, back = _over_the_wire(Homemade("no"))
    assert code == grpc.StatusCode.INTERNAL.value[0]
    assert back.message == "no"


def test_a_kind_of_a_newer_version_becomes_the_base_class() -> None:
    detail = errors_pb2.ErrorDetail(kind="BrandNewError", message="hm", fields={"a": "b"})
    back = from_detail(detail)
    assert type(back) is errors.RopewalkError
    assert (back.message, back.fields) == ("hm", {"a": "b"})


@pytest.mark.parametrize("name", ["message", "self"])
def test_a_field_of_any_name_does_not_break_the_error_that_carries_it(name: str) -> None:
    detail = errors_pb2.ErrorDetail(kind="RefusedError", message="hm", fields={name: "b"})
    assert from_detail(detail).fields == {name: "b"}


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.PeerLostError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.PeerLostError),
        (grpc.StatusCode.CANCELLED, errors.PeerLostError),
        (grpc.StatusCode.ABORTED, errors.PeerLostError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.LimitExceededError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.ProtocolMismatchError),
        (grpc.StatusCode.UNKNOWN, errors.RopewalkError),
    ],
    ids=lambda value: value.name if isinstance(value, grpc.StatusCode) else value.__name__,
)
def test_a_failure_without_our_detail_is_read_from_its_status(
    code: grpc.StatusCode, cls: type[errors.RopewalkError]
) -> None:
    error = from_rpc_error(
        FakeRpcError(code, "connection refused"), peer="/job:ps/task:1 (h:2222)", doing="push"
    )
    assert type(error) is cls
    assert (
        error.message == f"push: /job:ps/task:1 (h:2222) answered {code.name}: connection refused"
    )
    assert error.fields == {"peer": "/job:ps/task:1 (h:2222)", "code": code.name}


def test_a_failure_that_says_nothing_says_so() -> None:
    failure = FakeRpcError(grpc.StatusCode.UNAVAILABLE, metadata=None)
    assert from_rpc_error(failure, peer="p", doing="pull").message == (
        "pull: p answered UNAVAILABLE: no details"
    )
