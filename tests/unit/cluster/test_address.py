"""What is an address, and what is written instead of what is none."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import text_of
from ropewalk.cluster.address import Address, parse_address
from ropewalk.core.errors import ConfigurationError

PORTS = st.integers(1, 65535)
LABELS = text_of("abz09-_", min_size=1, max_size=63)
NAMES = st.lists(LABELS, min_size=1, max_size=3).map(".".join)
IPV6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address).map(str)
HOSTS = st.one_of(NAMES, st.ip_addresses(v=4).map(str))


@given(HOSTS, PORTS)
def test_a_name_and_an_ipv4_address_are_read_as_they_are(host: str, port: int) -> None:
    assert parse_address(f"{host}:{port}") == Address(host, port)


@given(IPV6, PORTS)
def test_an_ipv6_address_stands_in_brackets(host: str, port: int) -> None:
    assert parse_address(f"[{host}]:{port}") == Address(host, port)
    with pytest.raises(ConfigurationError, match="an IPv6 address stands in brackets") as caught:
        parse_address(f"{host}:{port}")
    assert f"write '[{host}]:{port}'" in caught.value.message


SLIPS = ("grpc://{}", "grpc+tls://{}", "http://{}/", "dns:///{}", " {}", "{}\n", "\t{} ")


@given(
    st.sampled_from(SLIPS),
    st.one_of(HOSTS, IPV6.map("[{}]".format)),
    PORTS,
)
def test_what_was_meant_is_said(slip: str, host: str, port: int) -> None:
    address = f"{host}:{port}"
    with pytest.raises(ConfigurationError) as caught:
        parse_address(slip.format(address))
    assert f"write {address!r} (" in caught.value.message


@given(text_of("a1:.[]/@ %-\0\n", max_size=30))
def test_text_is_an_address_or_refused_and_never_changed(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ConfigurationError:
        return
    assert text in {f"{host}:{port}", f"[{host}]:{port}", f"{host}:0{port}", f"{host}:00{port}"}
    assert not set(host) & set("[]/@ \0\n")
    assert 0 < port < 65536


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":1",
        "a:",
        "a:0",
        "a:65536",
        "a:-1",
        "a:" + "9" * 5000,
        "a:٣",
        "a b:1",
        "a..b:1",
        ".a:1",
        "a" * 64 + ":1",
        "a." * 127 + "a:1",
        "user@a:1",
        "a:1/path",
        "a:1,b:2",
        "[::1]",
        "::1",
        "[127.0.0.1]:1",
        "[a]:1",
        "a\0:1",
        "unix:/tmp/s:1",
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_whatever_is_none_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ConfigurationError, match="a colon, and a port from 1 to 65535") as caught:
        parse_address(text)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("ps_0:1", "ps_0"),
        ("localhost.:1", "localhost."),
        ("müller.lab:1", "müller.lab"),
        ("[fe80::1%eth0]:1", "fe80::1%eth0"),
        ("mnist-ps-0.mnist.train.svc.cluster.local:1", "mnist-ps-0.mnist.train.svc.cluster.local"),
    ],
    ids=["underscore", "final dot", "international", "zone", "Kubernetes"],
)
def test_every_host_that_can_be_asked_for_is_taken(text: str, host: str) -> None:
    assert parse_address(text) == (host, 1)
