"""Orders about shares, as a chief gives them to a ps: who may, and what a ps reports."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from helpers.digests import digest_of, log_of
from helpers.ps_peers import ADD, Ps, Worker, put, vector, worker_settings
from helpers.waiting import wait_until
from ropewalk.client.ps.control import PsControl
from ropewalk.client.ps.locating import leader_in
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.cluster.access import Principal
from ropewalk.cluster.replication.configuration import (
    CopyTo,
    FollowerState,
    GiveUpShare,
    HandOver,
    Lead,
    ReplicaRole,
    ShareLeader,
)
from ropewalk.cluster.replication.replica import GRANT_S
from ropewalk.core.errors import FencedError, MovedError, PeerLostError, RopewalkError
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.closure_pushes import ClosureRun
from ropewalk.server.ps.store import Store

PS = [TaskId("ps", 0), TaskId("ps", 1)]
CHIEF = TaskId("chief", 0)
FIRST, SECOND = Incarnation(CHIEF, 1), Incarnation(CHIEF, 2)


@pytest.fixture
def pair() -> Iterator[tuple[list[Ps], list[PsControl]]]:
    servers = [Ps("tcp", index, ps_replicas=2) for index in range(2)]
    controls = [
        PsControl(each.task, each.address, Settings(), Principal("chief", index=0))
        for each in servers
    ]
    for control in controls:
        control.attach(FIRST, "chief:1", lease_s=60, timeout_s=5)
    yield servers, controls
    for control in controls:
        control.close()
    for server in servers:
        server.close()


def copy_to(leader: PsControl, order: CopyTo, address: str) -> None:
    """Have a share copied, and wait until the follower has joined."""
    changes, _ = leader.watch_shares(FIRST, 0, timeout_s=5)
    leader.copy_share(FIRST, order, address, timeout_s=5)
    has_joined = False
    while not has_joined:
        changes, report = leader.watch_shares(FIRST, changes, timeout_s=5)
        shares = {each.share: each for each in report.shares}
        has_joined = any(each.has_joined for each in shares[order.share].followers)


def store_of(ps: Ps) -> Store:
    """Its store of share 0."""
    assert ps.server is not None
    return ps.server.shares.at(0).store


def followers_of(leader: PsControl) -> tuple[FollowerState, ...]:
    """Those of share 0."""
    _, report = leader.watch_shares(FIRST, 0, timeout_s=5)
    return {each.share: each for each in report.shares}[0].followers


def test_a_ps_with_replicas_leads_nothing_before_it_is_told_to(
    pair: tuple[list[Ps], list[PsControl]],
) -> None:
    [ps, _], [control, _] = pair
    with pytest.raises(MovedError, match="does not lead share 0"):
        ps.peer().connect(5)
    _, report = control.watch_shares(FIRST, 0, timeout_s=5)
    assert [(each.share, each.role) for each in report.shares] == [(0, ReplicaRole.NONE)]
    control.lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5)
    ps.peer().connect(5)


def test_a_share_is_copied_and_led_by_the_follower(
    pair: tuple[list[Ps], list[PsControl]],
) -> None:
    servers, controls = pair
    controls[0].lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5)
    worker = servers[0].worker()
    worker.create(vector())
    copy_to(controls[0], CopyTo(0, 1, PS[0], PS[1]), servers[1].address)
    with pytest.raises(FencedError, match="cannot lead share 0"):
        controls[1].lead_share(FIRST, Lead(0, 1, PS[1]), timeout_s=5)
    controls[1].lead_share(FIRST, Lead(0, 2, PS[1]), timeout_s=5)
    _, report = controls[1].watch_shares(FIRST, 0, timeout_s=5)
    led = {each.share: each for each in report.shares}[0]
    assert (led.role, led.epoch, led.is_whole) == (ReplicaRole.LEADING, 2, True)
    assert controls[1].find_job(timeout_s=5).shards == 1


def test_a_leader_that_gives_up_answers_nothing_and_has_nothing_any_more(
    pair: tuple[list[Ps], list[PsControl]],
) -> None:
    servers, controls = pair
    controls[0].lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5)
    servers[0].worker().create(vector())
    copy_to(controls[0], CopyTo(0, 1, PS[0], PS[1]), servers[1].address)
    controls[0].give_up_share(FIRST, GiveUpShare(0, 2, PS[0]), timeout_s=5)
    controls[0].give_up_share(FIRST, GiveUpShare(0, 2, PS[0]), timeout_s=5)  # said once more
    with pytest.raises(MovedError, match="does not lead share 0"):
        servers[0].peer().connect(5)
    assert controls[0].find_job(timeout_s=5).shards == 0
    before = time.monotonic()
    controls[1].lead_share(FIRST, Lead(0, 2, PS[1], leader_ended=True), timeout_s=5)
    assert time.monotonic() - before < GRANT_S / 2, "no read has to be waited for"
    assert controls[1].find_job(timeout_s=5).shards == 1
    with pytest.raises(FencedError, match="cannot give up share 0 in epoch 2"):
        controls[1].give_up_share(FIRST, GiveUpShare(0, 2, PS[1]), timeout_s=5)
    with pytest.raises(FencedError, match="it is gone in epoch 2"):
        controls[0].lead_share(FIRST, Lead(0, 3, PS[0]), timeout_s=5)
    copy_to(controls[1], CopyTo(0, 2, PS[1], PS[0]), servers[0].address)
    assert controls[0].find_job(timeout_s=5).shards == 1


def test_a_leader_whose_successor_is_lost_leads_again_with_what_it_had(
    pair: tuple[list[Ps], list[PsControl]],
) -> None:
    servers, controls = pair
    controls[0].lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5)
    servers[0].worker().create(vector())
    order = HandOver(0, 2, PS[0], PS[1])
    for _ in range(2):  # said once more
        controls[0].hand_over_share(FIRST, order, servers[1].address, timeout_s=5)
    with pytest.raises(MovedError, match="does not lead share 0") as moved:
        servers[0].peer().connect(5)
    leader = ShareLeader(0, 2, PS[1], servers[1].address)
    assert leader_in(moved.value, 0) == leader
    controls[0].lead_share(FIRST, Lead(0, 3, PS[0]), timeout_s=5)
    servers[0].peer().connect(5)
    assert controls[0].find_job(timeout_s=5).shards == 1
    order = HandOver(1, 2, PS[0], PS[1])
    with pytest.raises(FencedError, match="cannot hand over share 1"):
        controls[0].hand_over_share(FIRST, order, servers[1].address, timeout_s=5)


def hand_over(pair: tuple[list[Ps], list[PsControl]], epoch: int, old: int, new: int) -> None:
    """Give the one order that a handover of share 0 needs, and wait until the other ps leads."""
    servers, controls = pair
    order = HandOver(0, epoch, PS[old], PS[new])
    controls[old].hand_over_share(FIRST, order, servers[new].address, timeout_s=5)
    wait_until(lambda: role_of(controls[new]) is ReplicaRole.LEADING, 10, f"{PS[new]} to lead")


def role_of(control: PsControl) -> ReplicaRole:
    """What a ps is to share 0."""
    _, report = control.watch_shares(FIRST, 0, timeout_s=5)
    return {each.share: each.role for each in report.shares}[0]


def followed(pair: tuple[list[Ps], list[PsControl]]) -> None:
    """Have the second ps follow the first one in share 0, in epoch 2."""
    servers, controls = pair
    copy_to(controls[0], CopyTo(0, 1, PS[0], PS[1]), servers[1].address)
    controls[0].lead_share(FIRST, Lead(0, 2, PS[0], (PS[1],)), timeout_s=5)


def test_a_share_is_handed_over_to_and_fro_without_a_second_order(
    pair: tuple[list[Ps], list[PsControl]],
) -> None:
    """And without a chief that says so to workers, who hear it of the ps that led before."""
    servers, controls = pair
    controls[0].lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5)
    known = [ShareLeader(0, 1, PS[0], servers[0].address)]
    who = Incarnation(TaskId("worker", 0), 1)
    settings = worker_settings("tcp", servers[0].settings)
    peer = RemotePs(
        *(PS[0], servers[0].address, who, settings),
        locate=lambda share: known[-1],
        learn=known.append,
    )
    with closing(peer):
        worker = Worker(peer)
        worker.create(vector())
        followed(pair)
        for epoch, (old, new) in enumerate([(0, 1), (1, 0), (0, 1)], 3):
            # A run of a closure begins there, and its push does not come.
            store_of(servers[old])._marks.closures.is_new(ClosureRun(3, lane=0, turn=epoch), 1)
            hand_over(pair, epoch, old, new)
            worker.push(put(vector(), ADD, 1))
            worker.create(vector(f"made in epoch {epoch}"))
            worker.push(put(vector(), ADD, 1))
            assert known[-1] == ShareLeader(0, epoch, PS[new], servers[new].address)
            [follower] = followers_of(controls[new])
            assert (follower.task, follower.has_joined, follower.is_lost) == (PS[old], True, False)
            assert digest_of(store_of(servers[0])) == digest_of(store_of(servers[1]))
            assert log_of(store_of(servers[0])) == log_of(store_of(servers[1]))
            again = Lead(0, epoch, PS[new], (PS[old],), leader_ended=True)
            controls[new].lead_share(FIRST, again, timeout_s=5)  # which changes nothing
            assert len(followers_of(controls[new])) == 1
            with pytest.raises(FencedError, match="cannot hand over share 0"):
                hand_over(pair, epoch, old, new)
        assert worker.value(vector())[0] == 6
        assert worker.sequence == 10


def test_a_ps_that_hands_over_while_something_is_under_way_does_not_follow(
    pair: tuple[list[Ps], list[PsControl]],
) -> None:
    servers, controls = pair
    controls[0].lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5)
    followed(pair)
    assert servers[0].server is not None
    with servers[0].server.shares.at(0).serving():  # a call that takes long
        hand_over(pair, 3, 0, 1)
    assert followers_of(controls[1]) == ()
    controls[1].lead_share(FIRST, Lead(0, 4, PS[1]), timeout_s=5)
    assert controls[1].find_job(timeout_s=5).shards == 0, "it leads on, alone"


def test_a_ps_that_the_chief_has_told_to_lead_takes_no_order_of_its_leader(
    pair: tuple[list[Ps], list[PsControl]],
) -> None:
    servers, controls = pair
    controls[0].lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5)
    followed(pair)
    controls[1].lead_share(FIRST, Lead(0, 4, PS[1]), timeout_s=5)
    order = HandOver(0, 3, PS[0], PS[1])  # of a chief that has not heard of that
    controls[0].hand_over_share(FIRST, order, servers[1].address, timeout_s=5)
    _, report = controls[1].watch_shares(FIRST, 0, timeout_s=5)
    [led] = [each for each in report.shares if each.share == 0]
    assert (led.role, led.epoch, led.followers) == (ReplicaRole.LEADING, 4, ())


def test_a_ps_leads_by_no_order_of_an_earlier_chief_that_its_leader_passes_on(
    pair: tuple[list[Ps], list[PsControl]],
) -> None:
    servers, controls = pair
    controls[0].lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5)
    followed(pair)
    controls[1].attach(SECOND, "chief:2", lease_s=60, timeout_s=5)
    order = HandOver(0, 3, PS[0], PS[1])
    controls[0].hand_over_share(FIRST, order, servers[1].address, timeout_s=5)
    # This waits for one that is obeyed already, and would find a link to the ps that led before.
    lead = Lead(0, 3, PS[1], (PS[0],), leader_ended=True)
    controls[1].lead_share(SECOND, lead, timeout_s=5)
    _, report = controls[1].watch_shares(SECOND, 0, timeout_s=5)
    [led] = [each for each in report.shares if each.share == 0]
    assert (led.role, led.epoch, led.followers) == (ReplicaRole.LEADING, 3, ())


def test_an_earlier_chief_orders_nothing(pair: tuple[list[Ps], list[PsControl]]) -> None:
    _, [control, _] = pair
    control.attach(SECOND, "chief:2", lease_s=60, timeout_s=5)
    orders: list[Callable[[], object]] = [
        lambda: control.lead_share(FIRST, Lead(0, 1, PS[0]), timeout_s=5),
        lambda: control.copy_share(FIRST, CopyTo(0, 1, PS[0], PS[1]), "x:1", timeout_s=5),
        lambda: control.hand_over_share(FIRST, HandOver(0, 2, PS[0], PS[1]), "x:1", timeout_s=5),
        lambda: control.give_up_share(FIRST, GiveUpShare(0, 2, PS[0]), timeout_s=5),
        lambda: control.watch_shares(FIRST, 0, timeout_s=5),
    ]
    for order in orders:
        with pytest.raises(FencedError, match="cannot lead it as well"):
            order()
    control.lead_share(SECOND, Lead(0, 1, PS[0]), timeout_s=5)


def test_what_cannot_be_obeyed_is_refused(pair: tuple[list[Ps], list[PsControl]]) -> None:
    _, [control, _] = pair
    with pytest.raises(RopewalkError, match="beyond 4096"):
        control.lead_share(FIRST, Lead(4096, 1, PS[0]), timeout_s=5)
    with pytest.raises(FencedError, match="cannot lead share 1"):
        control.lead_share(FIRST, Lead(1, 7, PS[0]), timeout_s=5)
    with pytest.raises(FencedError, match="cannot copy share 0"):
        control.copy_share(FIRST, CopyTo(0, 1, PS[0], PS[1]), "x:1", timeout_s=5)


def test_a_ps_without_replicas_has_its_own_share_alone() -> None:
    ps = Ps("tcp", 1)
    control = PsControl(ps.task, ps.address, Settings(), Principal("chief", index=0))
    try:
        ps.worker().create(vector())
        with pytest.raises(
            MovedError, match="does not serve LeadShare: it has its own share alone"
        ):
            control.lead_share(FIRST, Lead(0, 1, PS[1]), timeout_s=5)
    finally:
        control.close()
        ps.close()


def test_a_watch_that_was_ended_asks_no_more(pair: tuple[list[Ps], list[PsControl]]) -> None:
    """Its channel is closed next, and gRPC does not bear a call on a closed one."""
    _, [control, _] = pair
    changes, _ = control.watch_shares(FIRST, 0, timeout_s=5)
    threading.Timer(0.05, control.end_watch).start()

    def watch() -> None:
        seen = changes
        while True:
            seen, _ = control.watch_shares(FIRST, seen, timeout_s=5)

    with pytest.raises(PeerLostError, match="is not asked any more"):
        watch()
    control.close()
    with pytest.raises(PeerLostError, match="is not asked any more"):
        control.watch_shares(FIRST, 0, timeout_s=5)
