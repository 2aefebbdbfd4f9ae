"""Whether a driver's program can run on a cluster: what refuses it, and what is a warning."""

import sys
from importlib import metadata

import pytest

from ropewalk.annexes.service.versions import check_environments, mismatches, own_environment, table
from ropewalk.core.errors import EnvironmentMismatchError, ProtocolMismatchError
from ropewalk.core.versions import PROTOCOL

OURS = {
    "protocol": "4",
    "ropewalk": "0.1.2",
    "python": "3.11.7",
    "numpy": "2.1.0",
    "torch": "2.4.1+cu121",
    "cloudpickle": "3.1.0",
}


@pytest.mark.parametrize(
    ("change", "pickled", "expected"),
    [
        pytest.param({}, True, [], id="equal"),
        pytest.param({"protocol": "5"}, False, ["protocol refused"], id="protocol"),
        pytest.param({"protocol": None}, False, ["protocol refused"], id="no protocol"),
        pytest.param({"ropewalk": "0.1.9"}, False, [], id="patch of ropewalk"),
        pytest.param({"ropewalk": "0.2.0"}, False, ["ropewalk refused"], id="minor of ropewalk"),
        pytest.param({"ropewalk": "0.12"}, False, ["ropewalk refused"], id="0.1 is not 0.12"),
        pytest.param({"ropewalk": "source tree"}, False, ["ropewalk warned"], id="source tree"),
        pytest.param({"ropewalk": None}, False, ["ropewalk warned"], id="no ropewalk"),
        pytest.param({"python": "3.11.9"}, True, [], id="patch of Python"),
        pytest.param({"python": "3.12.1"}, False, ["python warned"], id="Python, script"),
        pytest.param({"python": "3.12.1"}, True, ["python refused"], id="Python, closures"),
        pytest.param({"python": None}, True, ["python refused"], id="no Python, closures"),
        pytest.param({"numpy": "1.26.4"}, True, ["numpy warned"], id="NumPy"),
        pytest.param({"torch": "2.4.9"}, True, [], id="patch of a framework"),
        pytest.param({"torch": "2.5.0"}, True, ["torch warned"], id="minor of a framework"),
        pytest.param({"torch": None}, True, ["torch warned"], id="framework missing there"),
        pytest.param({"jax": "0.4.35", "tensorflow": "2.21"}, True, [], id="more there"),
        pytest.param(
            {"numpy": "1.0", "ropewalk": "9.9", "protocol": "9"},
            False,
            ["protocol refused", "ropewalk refused", "numpy warned"],
            id="the refused first",
        ),
    ],
)
def test_what_differs_is_refused_or_warned_of(
    change: dict[str, str | None], pickled: bool, expected: list[str]
) -> None:
    theirs = {name: text for name, text in (OURS | change).items() if text is not None}
    found = mismatches(OURS, theirs, pickled=pickled)
    assert [f"{mismatch.name} {mismatch.severity}" for mismatch in found] == expected
    for mismatch in found:
        assert (mismatch.ours, mismatch.theirs) == (OURS[mismatch.name], theirs.get(mismatch.name))


def test_a_refusal_names_the_peer_the_reason_and_the_whole_table() -> None:
    theirs = OURS | {"python": "3.12.1", "jax": "0.4.35"}
    theirs.pop("torch")
    with pytest.raises(EnvironmentMismatchError) as caught:
        check_environments(OURS, theirs, peer="chief.example:2222", pickled=True)
    assert caught.value.exit_code == 5
    assert caught.value.fields == {"peer": "chief.example:2222", "differ": "python"}
    first, *lines = caught.value.message.splitlines()
    assert first == (
        "chief.example:2222 cannot run this: closures need the same minor version of Python on "
        "both sides (a script does not)"
    )
    assert [line.split() for line in lines] == [
        ["here", "there"],
        ["protocol", "4", "4"],
        ["ropewalk", "0.1.2", "0.1.2"],
        ["python", "3.11.7", "3.12.1", "refused"],
        ["numpy", "2.1.0", "2.1.0"],
        ["jax", "-", "0.4.35"],
        ["torch", "2.4.1+cu121", "-", "warned"],
        ["cloudpickle", "3.1.0", "3.1.0"],
    ]


def test_another_protocol_is_an_error_of_its_own_and_warnings_are_returned() -> None:
    with pytest.raises(ProtocolMismatchError, match="install the same ropewalk on both sides"):
        check_environments(OURS, OURS | {"protocol": "5"}, peer="chief")
    found = check_environments(OURS, OURS | {"python": "3.12.1"}, peer="chief")
    assert [mismatch.name for mismatch in found] == ["python"]


def test_a_table_of_what_a_stranger_sends_stays_small_and_readable() -> None:
    theirs = {f"lib{n}\x1b[2J": "9" * 10_000 for n in range(1000)} | {"numpy": "2\n1"}
    text = table(OURS, theirs)
    lines = text.splitlines()
    assert len(lines) == 33
    assert all(line.isprintable() and len(line) < 160 for line in lines)


def test_the_own_environment_is_what_is_installed_and_nothing_is_imported() -> None:
    loaded = set(sys.modules)
    found = own_environment()
    assert not {"jax", "torch", "keras", "cloudpickle"} & (set(sys.modules) - loaded)
    assert found["protocol"] == str(PROTOCOL)
    assert found["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert found["numpy"] == metadata.version("numpy")
    assert mismatches(found, found, pickled=True) == []
