"""Which connection is used and why: every combination of findings."""

import itertools

import pytest

from helpers.rows import row
from ropewalk.net.connection_choice import (
    ConnectionChoice,
    ConnectionKind,
    Findings,
    choose_connection,
)

SHM, UNIX, TCP, TLS, GRPC = ConnectionKind
NO_TCP, NO_MEMORY, NO_UNIX = "its port does not greet", "no memfd", "no Unix socket can be used"
PEER_SHARES_NONE = "the peer shares no memory"


def all_findings() -> list[Findings]:
    return [
        Findings(wants_tcp, failure, is_local, wants_memory, obstacle, offered, unix_failure)
        for wants_tcp, failure, is_local, wants_memory, obstacle, offered, unix_failure in (
            itertools.product(
                (True, False), ("", NO_TCP), (True, False), (True, False),
                ("", NO_MEMORY), (True, False), ("", NO_UNIX),
            )
        )
    ]  # fmt: skip


def expected(found: Findings) -> ConnectionChoice:
    """The table of the documentation, row by row."""
    usable = found.wants_memory and found.unix_offered and not found.unix_failure
    answers = found.wants_tcp and not found.tcp_failure
    misses_memory = answers and found.is_local and found.wants_memory
    rows: list[tuple[bool, ConnectionChoice]] = [
        (usable and not found.memory_obstacle, ConnectionChoice(SHM)),
        (usable, ConnectionChoice(UNIX, NO_MEMORY, is_degraded=True)),
        (
            misses_memory and bool(found.unix_failure),
            ConnectionChoice(TCP, NO_UNIX, is_degraded=True),
        ),
        (misses_memory, ConnectionChoice(TCP, PEER_SHARES_NONE)),
        (answers, ConnectionChoice(TCP)),
        (not found.wants_tcp, ConnectionChoice(GRPC, "tcp_sessions is off")),
        (True, ConnectionChoice(GRPC, NO_TCP, is_degraded=True)),
    ]
    return next(choice for holds, choice in rows if holds)


def test_every_combination_has_one_choice_and_its_reason() -> None:
    for found in all_findings():
        with row(found):
            assert choose_connection(found) == expected(found)


@pytest.mark.parametrize(
    ("found", "description"),
    [
        (Findings(is_local=True, unix_offered=True), "shm"),
        (Findings(is_local=True, unix_offered=True, memory_obstacle=NO_MEMORY), "unix (no memfd)"),
        (Findings(), "tcp"),
        (Findings(is_local=True), "tcp (the peer shares no memory)"),
        (Findings(is_local=True, wants_memory=False), "tcp"),
        (Findings(wants_tcp=False), "grpc (tcp_sessions is off)"),
        (Findings(tcp_failure=NO_TCP), "grpc (its port does not greet)"),
    ],
    ids=["memory", "no-memory", "network", "peer-shares-none", "memory-off", "tcp-off", "no-port"],
)
def test_the_status_says_the_choice_and_why_it_is_not_a_faster_one(
    found: Findings, description: str
) -> None:
    assert choose_connection(found).description == description


def test_only_what_somebody_would_expect_to_be_faster_is_degraded() -> None:
    for found in all_findings():
        choice = choose_connection(found)
        if choice.is_degraded:
            assert choice.reason
            assert choice.kind is not SHM


def test_a_session_through_tls_is_named_so() -> None:
    assert choose_connection(Findings(encrypts=True)) == ConnectionChoice(TLS)
