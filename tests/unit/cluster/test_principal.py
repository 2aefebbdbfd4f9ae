"""Principals, and the table of who may do what."""

import pytest

from helpers.rows import row
from ropewalk.cluster.access import (
    ROLES,
    RULES,
    Leadership,
    Principal,
    check_access,
    check_claim,
    principal_of_path,
    principal_of_task,
    principal_of_uri,
)
from ropewalk.core.errors import ConfigurationError, PermissionDeniedError
from ropewalk.core.task import TaskId

PS = TaskId("ps", 0)
WORKER = Principal("worker", "mnist", 1)


@pytest.mark.parametrize(
    "principal",
    [WORKER, Principal("ps"), Principal("driver", "a.b-c_d"), Principal("chief", "", 0)],
    ids=str,
)
def test_a_principal_survives_its_uri(principal: Principal) -> None:
    assert principal_of_uri(principal.uri("example.org")) == principal


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("https://a/ropewalk/mnist/worker/1", "is not spiffe://"),
        ("spiffe://a/ns/default/sa/x", "is not spiffe://"),
        ("spiffe://a/ropewalk/mnist", "is not JOB/ROLE"),
        ("spiffe://a/ropewalk/mnist/worker/", "is not JOB/ROLE"),
        ("spiffe://a/ropewalk/mnist/worker/-1", "is not JOB/ROLE"),
        ("spiffe://a/ropewalk/mnist/worker/1/2", "is not JOB/ROLE"),
        ("spiffe://a/ropewalk/mnist/worker/99999999999", "index of a task"),
        ("spiffe://a/ropewalk/mnist/king", "no role is called 'king'"),
        ("spiffe://a/ropewalk/mnist/driver/0", "has no index"),
        ("spiffe://a/ropewalk/-x/driver", "a job cannot be called '-x'"),
    ],
)
def test_what_is_no_principal_is_an_error(uri: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        principal_of_uri(uri)


@pytest.mark.parametrize(
    ("who", "has_chief", "allowed"),
    [
        (Principal("chief"), True, True),
        (Principal("chief"), False, True),
        (Principal("worker", index=0), True, False),
        (Principal("worker", index=0), False, True),
        (Principal("worker", index=1), False, False),
        (Principal("ps", index=0), False, False),
        (Principal("driver"), False, False),
    ],
)
def test_one_task_leads(who: Principal, has_chief: bool, allowed: bool) -> None:
    operation = "/ropewalk.proto.v1.ParameterServer/EndJob"
    if allowed:
        check_access(who, operation, server=PS, leadership=Leadership(has_chief))
    else:
        with pytest.raises(PermissionDeniedError, match="may not EndJob"):
            check_access(who, operation, server=PS, leadership=Leadership(has_chief))


def test_who_may_not_lead_is_told_who_does() -> None:
    with pytest.raises(PermissionDeniedError, match="without one; chief:0 leads this one"):
        check_access(
            Principal("worker", index=0),
            "/ropewalk.proto.v1.ParameterServer/EndJob",
            server=PS,
            leadership=Leadership(leader=TaskId("chief", 0)),
        )


@pytest.mark.parametrize("role", ROLES)
def test_a_principal_of_another_job_may_nothing(role: str) -> None:
    for operation in RULES:
        with row(operation), pytest.raises(PermissionDeniedError, match="belongs to job 'mnist'"):
            check_access(Principal(role, "other"), operation, server=PS, job="mnist")


@pytest.mark.parametrize(
    ("claimed", "job", "allowed"),
    [
        (TaskId("worker", 1), "mnist", True),
        (TaskId("worker", 1), "", True),
        (TaskId("worker", 0), "", False),
        (TaskId("chief", 0), "", False),
        (TaskId("worker", 1), "other", False),
    ],
)
def test_a_principal_speaks_for_itself_alone(claimed: TaskId, job: str, allowed: bool) -> None:
    if allowed:
        check_claim(WORKER, claimed, job, server=PS)
    else:
        with pytest.raises(PermissionDeniedError, match="with the credentials of worker:1 of job"):
            check_claim(WORKER, claimed, job, server=PS)
    check_claim(principal_of_path("*/worker"), TaskId("worker", 7), job, server=PS)
    assert principal_of_task(claimed).may_be(claimed)
