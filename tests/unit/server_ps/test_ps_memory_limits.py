"""How much a ps holds: refused before memory is taken, and given back if nobody wants it."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ropewalk.core.errors import LimitExceededError, PeerLostError
from ropewalk.core.process.processes import memory_bytes
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.engine.library import library
from ropewalk.server.ps.store import Store

PS = TaskId("ps", 0)
WHO = Incarnation(TaskId("worker", 1), 1)
F32 = np.dtype(np.float32)
MIB = 1024 * 1024


def shard(name: str, num_bytes: int, initializer: Initializer | None = None) -> ShardDefinition:
    return ShardDefinition(VariableDefinition(name, (num_bytes // 4,), F32, initializer))


def store(**limits: int) -> Store:
    return Store(PS, Settings(**limits))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    ("limits", "sizes", "names"),
    [
        pytest.param({"max_ps_bytes": 100}, [104], ["max_ps_bytes", "104", "100"], id="ps"),
        pytest.param({"max_ps_bytes": 100}, [40, 40, 40], ["max_ps_bytes", "120"], id="together"),
        pytest.param({"max_variable_bytes": 80}, [84], ["max_variable_bytes", "84"], id="variable"),
    ],
)
def test_a_definition_beyond_the_limit_is_refused_with_its_numbers(
    limits: dict[str, int], sizes: list[int], names: list[str]
) -> None:
    ps = store(**limits)
    with pytest.raises(LimitExceededError) as caught:
        ps.table.define([shard(f"v{n}", size) for n, size in enumerate(sizes)], WHO)
    for word in ["'v0'", "/job:ps/task:0", "/job:worker/task:1", "ROPEWALK_", *names]:
        assert word in caught.value.message
    assert ps.counters().shards == 0


def test_parts_of_a_variable_that_come_one_by_one_add_up() -> None:
    ps = store(max_variable_bytes=80)
    first, second, third = cut(VariableDefinition("v", (24,), F32), 3)
    ps.table.define([first, second], WHO)
    ps.table.define([first, second], WHO)  # a repeat takes nothing
    with pytest.raises(LimitExceededError, match="max_variable_bytes is 80"):
        ps.table.define([third], WHO)


def test_slots_count_too() -> None:
    ps = store(max_ps_bytes=100)
    ps.table.define([shard("v", 40)], WHO)
    with pytest.raises(LimitExceededError, match=r"120 bytes .*max_ps_bytes is 100"):
        ps.table.bind(["v"], Adam(), WHO)
    ps.table.bind(["v"], SGD(momentum=0.9), WHO)
    assert ps.counters().slot_bytes == 40


@pytest.mark.parametrize("needs", ["a variable", "slots"])
def test_what_is_noted_for_readers_gives_way_to_what_training_needs(needs: str) -> None:
    ps = store(max_ps_bytes=130)
    ps.table.define([shard("v", 40), shard("w", 24)], WHO)
    block = next(each for each in ps.table.targets() if each.shards[0].variable.name == "v")
    ps.table.follow(block, 0, "a reader")
    assert block.followed_bytes == 40
    if needs == "slots":
        ps.table.bind(["w"], SGD(momentum=0.9), WHO)
    else:
        ps.table.define([shard("x", 40)], WHO)
    assert block.followed_bytes == 0
    with pytest.raises(LimitExceededError, match="let readers look rows up without"):
        ps.table.follow(block, 0, "a reader")


def test_by_default_a_definition_of_more_than_the_machine_has_is_refused() -> None:
    before = resident_bytes()
    with pytest.raises(LimitExceededError, match="max_ps_bytes"):
        store().table.define([shard("v", memory_bytes() * 2, Initializer("ones"))], WHO)
    assert resident_bytes() - before < MIB


@pytest.mark.parametrize("shared", [True, False])
def test_a_caller_that_gives_up_leaves_no_memory_behind(shared: bool) -> None:
    ps = Store(PS, Settings(shared_memory=shared))
    small = ShardDefinition(VariableDefinition("small", (4,), F32, Initializer("ones")))
    large = shard("large", 256 * MIB, Initializer("ones"))
    looks: Iterator[bool] = iter([True] * 6)
    library.wait(time.monotonic() + 60)  # kernels of a test before take memory, too
    before = resident_bytes()
    with pytest.raises(PeerLostError, match="has given up a definition of 2 shards"):
        ps.table.define([small, large], WHO, still_wanted=lambda: next(looks, False))
    assert resident_bytes() - before < 32 * MIB
    # The memory of what was begun is used again, and zero.
    ps.table.define([ShardDefinition(VariableDefinition("later", (8,), F32))], WHO)
    [block] = ps.table.blocks()
    np.testing.assert_array_equal(block.value, np.zeros(8))


def test_a_small_definition_that_is_given_up_leaves_zeros() -> None:
    ps = store()
    looks = iter([True, True])
    two = [shard(f"v{n}", 512 * 1024, Initializer("ones")) for n in range(2)]
    with pytest.raises(PeerLostError):
        ps.table.define(two, WHO, still_wanted=lambda: next(looks, False))
    ps.table.define([shard("later", 512 * 1024)], WHO)
    [block] = ps.table.blocks()
    assert not block.value.any()


def test_a_filled_variable_has_the_same_values_however_it_is_filled() -> None:
    ps = store()
    initializer = Initializer("random_normal", seed=3)
    variable = VariableDefinition("v", (5_000_001,), F32, initializer)
    ps.table.define([ShardDefinition(variable)], WHO)
    [block] = ps.table.blocks()
    expected = initializer.rows(variable.shape, F32, 0, 5_000_001)
    np.testing.assert_array_equal(block.value, expected)


def test_the_limit_of_a_cgroup_is_heard(tmp_path: Path) -> None:
    whole = memory_bytes(())
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "less").write_text(f"{MIB}\n")
    assert memory_bytes((tmp_path / "max", tmp_path / "gone")) == whole
    assert memory_bytes((tmp_path / "max", tmp_path / "less")) == MIB
