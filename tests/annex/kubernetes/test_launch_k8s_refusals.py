"""Answers of the Kubernetes API that are errors, in a few words. Pure."""

import json
import ssl
from typing import Any

import pytest

from helpers.kubernetes.rules import conflict, invalid, missing
from ropewalk.annexes.kubernetes.refusals import (
    Refusal,
    Where,
    error_of,
    no_answer,
    read_refusal,
)
from ropewalk.core.errors import (
    ConfigurationError,
    IncompatibleError,
    NotFoundError,
    PeerLostError,
    RopewalkError,
)

WHERE = Where("train", "https://10.0.0.1:6443", "there")


def read(body: dict[str, Any], status: int = 422) -> Refusal:
    return read_refusal(status, json.dumps(body), {})


def test_a_pod_template_of_seven_kilobytes_is_one_sentence() -> None:
    message = f"Invalid value: {'core.PodTemplateSpec{...}' * 300}: field is immutable"
    body = invalid("Job", "digits-chief", "spec.template", message, "FieldValueInvalid")
    refusal = read(body)
    assert refusal.words == "spec.template: field is immutable"
    assert refusal.is_about_fixed_fields


def test_fields_that_are_wrong_are_not_fixed_ones() -> None:
    refusal = read(
        invalid("Job", "j", "spec.completions", "Invalid value: -1", "FieldValueInvalid")
    )
    assert refusal.words == "spec.completions: Invalid value: -1"
    assert not refusal.is_about_fixed_fields


def test_long_words_and_a_proxys_page_are_cut() -> None:
    assert len(read({"message": "x " * 900}).words) < 310
    assert len(read_refusal(502, "<html>" + "y " * 900, {}).words) <= 200


@pytest.mark.parametrize(
    ("refusal", "kind", "said"),
    [
        (read(missing("Namespace", "train"), 404), NotFoundError,
         "there is no namespace train; `kubectl create namespace train --context there` makes it"),
        (read(conflict({"spec.replicas": "hpa"}), 409), IncompatibleError,
         '.spec.replicas: conflict with "hpa" using v1. --force takes these fields over'),
        (Refusal(0, "connection refused"), PeerLostError,
         "API server at https://10.0.0.1:6443 cannot be reached: connection refused"),
        (read_refusal(404, "Not Found", {}), ConfigurationError,
         "apply Job digits-chief in namespace train: 404 Not Found. This is no answer of a "
         "Kubernetes API: check the server of the context (https://10.0.0.1:6443), and the proxy"),
    ],
    ids=["namespace", "conflict", "nobody there", "somebody else"],
)  # fmt: skip
def test_an_error_says_what_to_do(refusal: Refusal, kind: type[RopewalkError], said: str) -> None:
    error = error_of(refusal, "apply Job digits-chief", WHERE)
    assert type(error) is kind
    assert said in error.message


def test_a_certificate_that_is_not_trusted_is_not_tried_again() -> None:
    inner = ssl.SSLCertVerificationError("CERTIFICATE_VERIFY_FAILED")
    inner.verify_message = "self-signed certificate"
    outer = RuntimeError("Max retries exceeded with url: /api/v1 (Caused by …)")
    outer.__cause__ = inner
    refusal = no_answer(outer)
    assert refusal.message == "its certificate is not trusted: self-signed certificate"
    assert not refusal.is_retried


@pytest.mark.parametrize(
    ("reached", "elapsed_s", "again"),
    [(False, 0.0, True), (False, 2.9, False), (True, 2.9, True), (True, 60.0, False)],
)
def test_a_server_that_has_answered_once_is_expected_back(
    reached: bool, elapsed_s: float, again: bool
) -> None:
    lost = Refusal(0, "connection refused")
    assert lost.is_tried_again(0, elapsed_s, reached=reached) is again


def test_a_hint_finds_the_same_job_again() -> None:
    assert WHERE.command("status", "digits", "--watch") == (
        "ropewalk k8s status --watch --name digits -n train --context there"
    )
    assert Where("my ns").command("list") == "ropewalk k8s list -n 'my ns'"
