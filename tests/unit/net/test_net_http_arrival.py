"""Where the head of an HTTP request ends."""

import pytest

from ropewalk.net.arrival import HTTP_HEAD_BYTES, HttpArrival


@pytest.mark.parametrize(
    ("first", "wanted", "is_ours"),
    [
        pytest.param(b"", HTTP_HEAD_BYTES, False, id="nothing yet"),
        pytest.param(b"GET / HTTP/1.1\r\n", HTTP_HEAD_BYTES - 16, False, id="a part"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 0, True, id="complete"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\nmore", 0, True, id="with a body"),
        pytest.param(b"a" * HTTP_HEAD_BYTES, 0, False, id="too long"),
        pytest.param(b"RPWK", HTTP_HEAD_BYTES - 4, False, id="another protocol"),
    ],
)
def test_a_request_is_read_to_its_end_and_no_further_than_the_limit(
    first: bytes, wanted: int, is_ours: bool
) -> None:
    arrival = HttpArrival()
    arrival.first = first
    assert (arrival.wanted(), arrival.is_ours) == (wanted, is_ours)
