"""Slurm's lists of hosts and of tasks per node.

The forms are those of slurm.conf(5), "NodeName", of srun(1), ``SLURM_STEP_NODELIST`` and
``SLURM_STEP_TASKS_PER_NODE``, and of the tests of TensorFlow's SlurmClusterResolver.
"""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.cluster.resolvers.slurm import MAX_ITEMS, expand_counts, expand_host_list
from ropewalk.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        pytest.param("n1", "n1", id="one"),
        pytest.param("n[1,3]", "n1 n3", id="numbers"),
        pytest.param("n[1-3]", "n1 n2 n3", id="range"),
        pytest.param("n[1-2],m5,o[3-4,6,7-9]", "n1 n2 m5 o3 o4 o6 o7 o8 o9", id="all of it"),
        pytest.param("n[0001-0003],m5,o[009-011]", "n0001 n0002 n0003 m5 o009 o010 o011", id="pad"),
        pytest.param("t02n13,t02n41,t02n43", "t02n13 t02n41 t02n43", id="no brackets"),
        pytest.param("n[8-11]", "n8 n9 n10 n11", id="growing without padding"),
        pytest.param("n[98-101]", "n98 n99 n100 n101", id="past the padded width"),
        pytest.param("n[2,1]", "n2 n1", id="the order is Slurm's"),
        pytest.param(
            "rack[0-1]node[1-2].hpc",
            "rack0node1.hpc rack0node2.hpc rack1node1.hpc rack1node2.hpc",
            id="two brackets and text behind them",
        ),
        pytest.param("[1-2]", "1 2", id="no text at all"),
        pytest.param("gpu-a100-[01-02],login-1", "gpu-a100-01 gpu-a100-02 login-1", id="dashes"),
    ],
)
def test_a_host_list_reads_as_slurm_writes_it(text: str, hosts: str) -> None:
    assert expand_host_list(text) == hosts.split()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "a host is expected at character 1", id="nothing"),
        pytest.param("n1,", "a host is expected at character 4", id="trailing comma"),
        pytest.param(",n1", "a host is expected at character 1", id="leading comma"),
        pytest.param("n1,,n2", "a host is expected at character 4", id="two commas"),
        pytest.param("n[1-2", r"unexpected '\[' at character 2", id="open bracket"),
        pytest.param("n1-2]", r"unexpected '\]' at character 5", id="closed without opening"),
        pytest.param("n[[1]]", r"unexpected '\[' at character 2", id="nested"),
        pytest.param("n[]", "'' in brackets is neither", id="empty bracket"),
        pytest.param("n[a-b]", "'a-b' in brackets is neither", id="letters"),
        pytest.param("n[1-2-3]", "'1-2-3' in brackets", id="two dashes"),
        pytest.param("n[1,]", "'' in brackets", id="comma in brackets"),
        pytest.param("n[3-1]", "the range 3-1 runs backwards", id="backwards"),
        pytest.param("n1 n2", "unexpected ' ' at character 3", id="a blank between hosts"),
        pytest.param("n[0-999999999]", f"more than {MAX_ITEMS} hosts", id="too many"),
        pytest.param("a[1-999]b[1-999]", f"more than {MAX_ITEMS} hosts", id="too many by product"),
    ],
)
def test_what_is_no_host_list_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        expand_host_list(text, "SLURM_STEP_NODELIST")
    assert caught.value.message.startswith(f"SLURM_STEP_NODELIST={text!r}")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param("2", [2], id="one node"),
        pytest.param("2,1,3", [2, 1, 3], id="each node"),
        pytest.param("3(x2),2,1", [3, 3, 2, 1], id="repeated"),
        pytest.param("13(x10)", [13] * 10, id="two digits"),
    ],
)
def test_tasks_per_node_read_as_slurm_writes_them(text: str, counts: list[int]) -> None:
    assert expand_counts(text) == counts


@pytest.mark.parametrize(
    "text", ["", "x2", "2(3)", "2(x)", "2,,1", "-1", "2(x2)1", "²", "2(x99999999)"], ids=repr
)
def test_what_are_no_counts_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SLURM_STEP_TASKS_PER_NODE="):
        expand_counts(text, "SLURM_STEP_TASKS_PER_NODE")


# -- any list ----------------------------------------------------------------------------------

_WORDS = st.sampled_from(["n", "gpu-", "t02n", "rack", "a.b-", "x1y"])
_LOWS = st.integers(0, 120)


@st.composite
def _brackets(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracket, and the numbers in it, written as in the host names."""
    parts, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        low, more = draw(_LOWS), draw(st.integers(0, 12))
        width = draw(st.integers(0, 5))
        first = f"{low:0{width}d}" if width else str(low)
        last = f"{low + more:0{len(first)}d}"
        parts.append(first if more == 0 and draw(st.booleans()) else f"{first}-{last}")
        numbers += [f"{number:0{len(first)}d}" for number in range(low, low + more + 1)]
    return f"[{','.join(parts)}]", numbers


@st.composite
def _items(draw: st.DrawFn) -> tuple[str, list[str]]:
    """An item of a host list, and its hosts."""
    text = draw(_WORDS)
    hosts = [text]
    for _ in range(draw(st.integers(0, 2))):
        bracket, numbers = draw(_brackets())
        behind = draw(st.sampled_from(["", "-", ".hpc", "node"]))
        text += bracket + behind
        hosts = [f"{host}{number}{behind}" for host in hosts for number in numbers]
    return text, hosts


@given(st.lists(_items(), min_size=1, max_size=4))
def test_any_list_of_the_grammar_gives_its_hosts(items: list[tuple[str, list[str]]]) -> None:
    text = ",".join(item for item, _ in items)
    assert expand_host_list(text) == [host for _, hosts in items for host in hosts]


@given(st.lists(st.sampled_from(["n", "1", "0", "[", "]", ",", "-", "(x2)", " "]), max_size=12))
def test_any_text_is_a_list_or_an_error_and_nothing_else(pieces: list[str]) -> None:
    for expand in (expand_host_list, expand_counts):
        with suppress(ConfigurationError):
            assert expand("".join(pieces))


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(1, 9)), min_size=1, max_size=6))
def test_any_counts_are_given_back(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{nodes})" if nodes > 1 else str(count) for count, nodes in runs)
    assert expand_counts(text) == [count for count, nodes in runs for _ in range(nodes)]
