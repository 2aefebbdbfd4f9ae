"""Moves of shares pay, come to an end, and none undoes another."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.annexes.replication.balancing import ShareWork, WorkMeter, best_move
from ropewalk.cluster.replication.configuration import Configuration, ReplicaRole, ShareState
from ropewalk.core.task import TaskId

PS = [TaskId("ps", index) for index in range(4)]


def share(number: int, leader: int, work: float, *followers: int, held: int = 0) -> ShareWork:
    now = Configuration(number, 1, PS[leader], tuple(PS[index] for index in followers))
    return ShareWork(now, work, held)


def test_a_leader_of_everything_hands_one_share_to_the_ps_that_follows_it() -> None:
    shares = [share(0, 1, 100, 0), share(1, 1, 100, 0), share(2, 1, 100, 2)]
    assert best_move(shares, PS[:3]) == (0, PS[0])
    assert best_move(shares[2:], PS[:3]) is None, "one share is somewhere"
    assert best_move([share(0, 1, 0), share(1, 1, 0)], PS[:2]) is None, "there is no work"


def test_a_move_that_gains_little_is_not_made() -> None:
    assert best_move([share(0, 0, 100), share(1, 0, 22), share(2, 1, 80)], PS[:2]) is None
    assert best_move([share(0, 0, 100), share(1, 0, 30), share(2, 1, 70)], PS[:2]) == (1, PS[1])


def test_a_move_whose_copy_costs_more_than_it_gains_in_a_minute_is_not_made() -> None:
    both = [share(0, 0, 100, 1, held=6000), share(1, 0, 100, 1, held=6000)]
    assert best_move(both, PS[:2]) == (0, PS[1])
    assert best_move(both, PS[2:]) is None, "it is copied twice if that ps does not follow"
    assert best_move([replace(each, held_bytes=6001) for each in both], PS[:2]) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_moves_come_to_an_end_though_what_is_measured_is_not_exact(
    drawn: list[tuple[int, int]], random: object
) -> None:
    shares = [share(number, leader, work) for number, (leader, work) in enumerate(drawn)]

    def squares() -> float:
        sums = [sum(e.bytes_per_s for e in shares if e.now.leader == task) for task in PS]
        return sum(each * each for each in sums)

    for _ in range(200):
        seen = [
            replace(each, bytes_per_s=each.bytes_per_s * random.uniform(0.95, 1.05))  # type: ignore[attr-defined]
            for each in shares
        ]
        move = best_move(seen, PS)
        if move is None:
            break
        before, (number, to) = squares(), move
        shares[number] = replace(shares[number], now=replace(shares[number].now, leader=to))
        assert squares() < before, "so no state comes again"
    else:
        raise AssertionError("it goes on and on")


def test_work_is_measured_while_nothing_changes() -> None:
    meter, now = WorkMeter(), Configuration(0, 2, PS[0], (PS[1],))

    def report(now_s: float, pushes: int, received: int, epoch: int = 2) -> None:
        state = ShareState(0, ReplicaRole.LEADING, epoch, True, (), 7000, pushes, received)
        meter.see(now_s, now, state)

    report(10, 5, 1000)
    report(14, 5, 9000)
    assert meter.work([now]) == []
    report(15, 7, 6000)
    assert meter.work([now]) == [ShareWork(now, (5000 + 2 * 65536) / 5, 7000)]
    report(20, 9, 9000, epoch=1)
    assert meter.work([now])[0].bytes_per_s == (5000 + 2 * 65536) / 5, "what an earlier leader says"
    now = replace(now, epoch=3)
    assert meter.work([now]) == []
    report(21, 0, 0, epoch=3)
    report(26, 0, 0, epoch=3)
    assert meter.work([now]) == [ShareWork(now, 0.0, 7000)]
    assert meter.work([now, Configuration(1, 1, PS[1])]) == []
