"""Where a server listens, and that the world is let in only if somebody said so."""

import pytest

from ropewalk.core.errors import ConfigurationError
from ropewalk.core.settings import Settings
from ropewalk.net.auth.credentials import (
    SecurityMode,
    bind_address,
    dialled_address,
    is_loopback,
    security_mode,
)


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost.", "Localhost", "127.0.0.1", "127.3.2.1", "::1", "[::1]"],
    ids=lambda host: host,
)
def test_loopback_is_known_by_name_and_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",  # noqa: S104 - only named
        "::",
        "[::]",
        "10.0.0.1",
        "chief-0.job",
        "localhost.example",
        "localhost..",
        "127.0.0.1.nip.io",
    ],
    ids=lambda host: host or "empty",
)
def test_everything_else_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("address", "host", "insecure", "expected"),
    [
        pytest.param("127.0.0.1:2222", "", False, "127.0.0.1:2222", id="loopback"),
        pytest.param("localhost:0", "", False, "localhost:0", id="loopback-by-name"),
        pytest.param("localhost.:0", "", False, "localhost:0", id="loopback-by-rooted-name"),
        pytest.param("ps-0.svc:2222", "localhost.", False, "localhost:2222", id="host-by-name"),
        pytest.param("[::1]:2222", "", False, "[::1]:2222", id="loopback-v6"),
        pytest.param("ps-0.svc:2222", "", True, "0.0.0.0:2222", id="service-name"),
        pytest.param("10.0.0.7:2222", "", True, "0.0.0.0:2222", id="other-machine"),
        pytest.param("10.0.0.7:2222", "10.0.0.7", True, "10.0.0.7:2222", id="one-interface"),
        pytest.param("ps-0.svc:2222", "127.0.0.1", False, "127.0.0.1:2222", id="behind-a-proxy"),
        pytest.param("ps-0.svc:2222", "[::1]", False, "[::1]:2222", id="host-v6-in-brackets"),
        pytest.param("ps-0.svc:2222", "::1", False, "[::1]:2222", id="host-v6"),
        pytest.param("ps-0.svc:2222", "::", True, "[::]:2222", id="every-interface-v6"),
    ],
)
def test_a_server_listens(address: str, host: str, insecure: bool, expected: str) -> None:
    settings = Settings(host=host, insecure=insecure)
    assert bind_address(address, settings) == expected
    wanted = SecurityMode.INSECURE if insecure else SecurityMode.LOCAL
    assert security_mode(settings, address, host) is wanted


@pytest.mark.parametrize(
    ("address", "host"),
    [
        pytest.param("10.0.0.7:2222", "", id="address"),
        pytest.param("ps-0.svc:2222", "", id="name"),
        pytest.param(":2222", "", id="no-host"),
        pytest.param("127.0.0.1:2222", "0.0.0.0", id="every-interface"),  # noqa: S104 - refused
    ],
)
def test_serving_other_machines_must_be_asked_for(address: str, host: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        security_mode(Settings(), address, host)
    for word in (address, "--insecure", "ROPEWALK_INSECURE=1", "--host 127.0.0.1"):
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("address", "insecure", "dialled"),
    [
        pytest.param("localhost:2222", False, "127.0.0.1:2222", id="with-the-key"),
        pytest.param("localhost.:2222", False, "127.0.0.1:2222", id="rooted-with-the-key"),
        pytest.param("localhost.:2222", True, "localhost:2222", id="rooted"),
        pytest.param("ps-0.svc.:2222", True, "ps-0.svc.:2222", id="another-rooted-name"),
    ],
)
def test_a_caller_dials_this_machine_by_a_name_that_needs_no_server(
    address: str, insecure: bool, dialled: str
) -> None:
    assert dialled_address(Settings(insecure=insecure), address) == dialled
