"""What a TLS failure says, and whether a restart could mend it."""

import ssl
from datetime import UTC, datetime
from typing import Any

import pytest

from ropewalk.core.errors import UnauthenticatedError
from ropewalk.net.auth.tls_failures import CertificateFacts, Side, explain

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FACTS = CertificateFacts(
    "CN=ps", "CN=CA", ("ps-0.svc",), (), datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
)  # fmt: skip


def refused(code: int, message: str = "") -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "CERTIFICATE_VERIFY_FAILED")
    error.reason = "CERTIFICATE_VERIFY_FAILED"
    error.verify_code, error.verify_message = code, message
    return error


def said(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "arguments", "says"),
    [
        (refused(10), {}, "expired on 2026-02-01 00:00:00 UTC; the clock here says 2026-03-01 12"),
        (refused(9), {}, "not valid before 2026-01-01 00:00:00 UTC; the clock here says 2026-03"),
        (refused(18), {}, "is self-signed"),
        (refused(20), {}, "comes from another CA"),
        (refused(62), {}, "not for this address (it is for ps-0.svc)"),
        (refused(62, "Hostname mismatch, x."), {"certificate": None}, "(Hostname mismatch, x)"),
        (refused(26), {}, "serverAuth and clientAuth"),
        (refused(7, "signature failure"), {}, "is not trusted: signature failure"),
        (said("PEER_DID_NOT_RETURN_A_CERTIFICATE"), {"side": "server"}, "showed no certificate"),
        (said("TLSV13_ALERT_CERTIFICATE_REQUIRED"), {}, "has none to show"),
        (said("SSLV3_ALERT_CERTIFICATE_EXPIRED"), {}, "has expired by its clock"),
        (said("TLSV1_ALERT_UNKNOWN_CA"), {}, "does not know the CA"),
        (said("TLSV1_ALERT_PROTOCOL_VERSION"), {}, "does not speak TLS 1.3"),
        (said("UNSUPPORTED_PROTOCOL"), {"side": "server"}, "older version than TLS 1.3"),
        (said("WRONG_VERSION_NUMBER"), {}, "the port does not speak TLS"),
        (said("x"), {"began": b"HTTP/1.1"}, "the port does not speak TLS"),
        (said("x"), {"began": b"RPWK", "side": "server"}, "this port speaks TLS, and the client"),
    ],
)
def test_what_a_restart_would_meet_again_says_what_to_do(
    error: ssl.SSLError, arguments: dict[str, Any], says: str
) -> None:
    side: Side = "client"
    found = explain(
        error, **{"side": side, "peer": "ps:0", "certificate": FACTS, "now": NOW, **arguments}
    )
    assert isinstance(found, UnauthenticatedError)
    assert found.message.startswith("ps:0: ")
    assert says in found.message


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, "closed the connection in the middle of the TLS handshake"),
        (said("UNEXPECTED_EOF_WHILE_READING"), "broke: unexpected_eof_while_reading"),
        (said("DECRYPTION_FAILED_OR_BAD_RECORD_MAC"), "broke: decryption_failed"),
        (said("SSLV3_ALERT_BAD_RECORD_MAC"), "broke"),
    ],
)
def test_what_broke_off_may_be_tried_again(error: ssl.SSLError | None, says: str) -> None:
    found = explain(error, side="client", peer="ps:0", began=b"\x16\x03")
    assert isinstance(found, ConnectionError)
    assert says in str(found)
