"""A ps follows another one over every kind of connection."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from helpers.digests import digest_of
from helpers.hosts import SETTINGS, every_kind
from helpers.replication.stores import SilentLink, Worker, fill, run_together
from helpers.waiting import wait_until
from ropewalk.annexes.replication.server.follower import Follower
from ropewalk.annexes.replication.server.joining import copy_store
from ropewalk.annexes.replication.server.posting import StoreRecords
from ropewalk.annexes.replication.server.records import (
    CopiedTile,
    CopyCompleted,
    HandedOver,
    TaskRegistered,
)
from ropewalk.annexes.replication.server.servicer import FollowService
from ropewalk.annexes.replication.server.share import ReplicatedShare
from ropewalk.annexes.replication.server.share_part import SERVICE
from ropewalk.annexes.replication.server.shares import RemoteLink
from ropewalk.annexes.replication.server.stream import RecordStream
from ropewalk.cluster.replication import replica
from ropewalk.cluster.replication.configuration import GiveUpShare, HandOver, Lead, ReplicaRole
from ropewalk.core.errors import FencedError, MovedError, PeerLostError, RefusedError
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.closure_pushes import ClosureMarks
from ropewalk.net.auth.guard import Guard
from ropewalk.net.endpoint import Greeting, Service
from ropewalk.net.host import TaskHost
from ropewalk.server.ps.push_marks import LogCopied

LEADER, FOLLOWER = TaskId("ps", 0), TaskId("ps", 1)
ME = Incarnation(LEADER, 1)


class Pair:
    """A leader, and a ps that waits to follow it.

    Args:
        settings: Settings of both.
        serve: The follower's service; None: the product's.
        prepare: What makes the follower slow at first.
    """

    def __init__(
        self,
        settings: Settings,
        serve: Service | None = None,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self.settings = settings
        self.leader = ReplicatedShare(0, LEADER, settings)
        self.leader.lead(Lead(0, 1, LEADER))
        fill(self.leader.store, Adam(learning_rate=0.01))
        self.follower = ReplicatedShare(0, FOLLOWER, settings)
        service = FollowService(
            lambda number: self.follower, settings.max_step_bytes, self.succeed, prepare
        )
        self.host = TaskHost(
            FOLLOWER,
            threads=8,
            settings=settings,
            calls={},
            guard=Guard(FOLLOWER, settings),
            sessions={SERVICE: serve or service.serve},
            max_sessions=8,
        )
        self.host.start("127.0.0.1:0")

    def succeed(
        self, share: ReplicatedShare, leader: TaskId, said: HandedOver, take: Callable[[], None]
    ) -> None:
        share.succeed(Lead(0, said.epoch, FOLLOWER, (leader,), leader_ended=True), take)

    def link(self, epoch: int = 1, leader: Incarnation = ME) -> RemoteLink:
        return RemoteLink(
            FOLLOWER,
            f"127.0.0.1:{self.host.port}",
            leader,
            share=0,
            epoch=epoch,
            stream=self.leader.store.part(StoreRecords).stream,
            settings=self.settings,
        )

    def follow(self) -> RemoteLink:
        """Copy the share, and need the follower."""
        link = self.link()
        copy_store(self.leader.store, Follower(FOLLOWER, link))
        self.leader.store.part(StoreRecords).stream.need([FOLLOWER])
        return link

    def link_is_broken(self) -> bool:
        """Whether the leader knows; it looks now and then."""
        self.leader.check()
        [follower] = self.leader.store.part(StoreRecords).stream.followers
        return follower.broken is not None


@contextmanager
def pair(
    settings: Settings,
    serve: Service | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Iterator[Pair]:
    both = Pair(settings, serve, prepare)
    try:
        yield both
    finally:
        both.leader.store.part(StoreRecords).stream.detach(FOLLOWER)
        both.host.stop(0)


@every_kind
def test_no_push_waits_for_a_ps_that_gets_ready_to_follow(kind: str) -> None:
    is_ready, links = threading.Event(), list[RemoteLink]()
    with pair(SETTINGS[kind], prepare=lambda: is_ready.wait(30)) as both:
        opening = threading.Thread(target=lambda: links.append(both.link()))
        opening.start()
        opening.join(0.2)
        assert links == []  # so nothing is sent to it
        is_ready.set()
        opening.join(30)
        [link] = links
        link.close()


@every_kind
def test_a_ps_follows_another(kind: str) -> None:
    with pair(SETTINGS[kind]) as both:
        store = both.leader.store
        workers = [Worker(store, index) for index in range(2)]

        def train(worker: Worker) -> None:
            for _ in range(10):
                worker.push()
                store.part(StoreRecords).stream.confirm()

        both.follow()
        run_together(*(lambda each=each: train(each) for each in workers))
        assert both.follower.replica.role is ReplicaRole.FOLLOWING
        assert both.follower.replica.is_whole
        # The last records are acknowledged before they are carried out.
        wait_until(lambda: digest_of(both.follower.store) == digest_of(store), 10)
        assert both.follower.store.global_step == 20


def test_a_follower_that_leads_takes_nothing_more_and_its_leader_answers_nobody() -> None:
    with pair(SETTINGS["tcp"]) as both:
        store = both.leader.store
        both.follow()
        worker = Worker(store, 0)
        worker.push()
        store.part(StoreRecords).stream.confirm()
        digest = digest_of(store)
        both.follower.lead(Lead(0, 2, FOLLOWER))
        worker.push()
        wait_until(both.link_is_broken, 10)
        store.part(StoreRecords).stream.close(FencedError("another ps leads"))
        with pytest.raises(FencedError):
            store.part(StoreRecords).stream.confirm()
        assert digest_of(both.follower.store) == digest
        again = Worker(both.follower.store, 0)
        again.pushes = 1
        assert not again.push().duplicate


def test_a_ps_that_is_gone_breaks_the_link_and_answers_wait() -> None:
    settings = Settings(insecure=True, shared_memory=False, request_timeout_s=0.3)
    with pair(settings) as both:
        store = both.leader.store
        lost: list[TaskId] = []
        store.part(StoreRecords).stream.lost = lambda task, error: lost.append(task)
        both.follow()
        both.host.stop(0)
        wait_until(both.link_is_broken, 10)
        assert lost == [FOLLOWER]
        Worker(store, 0).push()
        with pytest.raises(PeerLostError, match="task:1 follows this ps"):
            store.part(StoreRecords).stream.confirm()
        store.part(StoreRecords).stream.need([])  # in the next epoch it goes on alone
        store.part(StoreRecords).stream.confirm()


def test_a_leader_of_an_earlier_epoch_is_not_followed() -> None:
    with pair(SETTINGS["tcp"]) as both:
        both.follow()
        both.follower.lead(Lead(0, 3, FOLLOWER))
        link = both.link(epoch=2)
        both.leader.store.part(StoreRecords).stream.detach(FOLLOWER)
        both.leader.store.part(StoreRecords).attach(Follower(FOLLOWER, link))
        [follower] = both.leader.store.part(StoreRecords).stream.followers
        wait_until(both.link_is_broken, 10)
        assert isinstance(follower.broken, FencedError)
        assert "leading in epoch 3" in str(follower.broken)
        assert both.follower.replica.role is ReplicaRole.LEADING


def test_a_record_out_of_order_is_refused() -> None:
    records = ReplicatedShare(0, FOLLOWER, SETTINGS["tcp"]).follow(LEADER, 1, lambda: None)
    with pytest.raises(RefusedError, match="sent record 9 of share 0 after 0"):
        records.take(1, 9, lambda: TaskRegistered(ME))


@pytest.mark.parametrize("leader", [LEADER, TaskId("ps", 2)], ids=["again", "another"])
def test_a_record_is_refused_once_a_leader_has_another_link(leader: TaskId) -> None:
    share, ended = ReplicatedShare(0, FOLLOWER, SETTINGS["tcp"]), threading.Event()
    earlier = share.follow(LEADER, 1, ended.set)
    records = share.follow(leader, 1, lambda: None)
    assert ended.is_set()
    with pytest.raises(FencedError, match="does not follow"):
        earlier.take(1, 1, lambda: TaskRegistered(ME))
    records.take(1, 1, lambda: TaskRegistered(ME))


def test_a_ps_without_everything_does_not_lead() -> None:
    share = ReplicatedShare(0, FOLLOWER, SETTINGS["tcp"])
    share.follow(LEADER, 1, lambda: None)
    with pytest.raises(FencedError, match="following in epoch 1, without all of its contents"):
        share.lead(Lead(0, 2, FOLLOWER))


def test_a_leader_that_gives_up_ends_its_sessions_before_it_answers() -> None:
    share = ReplicatedShare(0, LEADER, SETTINGS["tcp"])
    share.lead(Lead(0, 1, LEADER))
    ended = threading.Event()
    with share.serving(ended.set) as store:
        share.give_up(GiveUpShare(0, 2, LEADER))
        assert ended.is_set()
        with pytest.raises(MovedError, match="another ps leads"):
            store.part(StoreRecords).stream.confirm_read()
    assert share.store is not store


def test_a_leader_that_is_counted_on_keeps_what_it_has_and_answers_nothing() -> None:
    share = ReplicatedShare(
        0, LEADER, SETTINGS["tcp"].model_copy(update={"request_timeout_s": 0.1})
    )
    share.lead(Lead(0, 1, LEADER))
    ended = threading.Event()
    with share.serving(ended.set) as store:
        share.hand_over(HandOver(0, 2, LEADER, FOLLOWER), "ps1:1", HandedOver(2, ME, "ps0:1"))
        assert ended.is_set()
        with pytest.raises(PeerLostError):
            store.part(StoreRecords).stream.confirm_read()
        with pytest.raises(PeerLostError):
            store.part(StoreRecords).stream.confirm()
    share.lead(Lead(0, 3, LEADER))
    assert share.led() is store
    store.part(StoreRecords).stream.confirm()


def test_a_ps_follows_without_a_copy_only_whom_it_has_handed_everything_over_to() -> None:
    share = ReplicatedShare(0, LEADER, SETTINGS["tcp"])
    share.lead(Lead(0, 1, LEADER))
    with share.serving():  # something is under way
        share.hand_over(HandOver(0, 2, LEADER, FOLLOWER), "ps1:1", HandedOver(2, ME, "ps0:1"))
    with pytest.raises(RefusedError, match="without a copy"):
        share.follow_on(FOLLOWER, 2, lambda: None)
    share.lead(Lead(0, 3, LEADER))
    share.hand_over(HandOver(0, 4, LEADER, FOLLOWER), "ps1:1", HandedOver(4, ME, "ps0:1"))
    for leader, epoch in ((TaskId("ps", 2), 4), (FOLLOWER, 3), (FOLLOWER, 5)):
        with pytest.raises(RefusedError, match="without a copy"):
            share.follow_on(leader, epoch, lambda: None)
    share.follow_on(FOLLOWER, 4, lambda: None)
    with pytest.raises(RefusedError, match="without a copy"):
        share.follow_on(FOLLOWER, 4, lambda: None)


def test_an_order_of_the_chief_waits_for_the_one_that_the_leader_has_passed_on() -> None:
    """It comes once the leader has heard that it was taken, and names no link to the leader."""
    share = ReplicatedShare(0, FOLLOWER, SETTINGS["tcp"])
    records = share.follow(LEADER, 1, lambda: None)
    records.take(1, 1, CopyCompleted)
    order = Lead(0, 2, FOLLOWER, (LEADER,), leader_ended=True)
    said = threading.Thread(target=share.lead, args=(order,))

    def take() -> None:
        records.take(1, 2, lambda: HandedOver(2, ME, "ps0:1"))
        said.start()
        said.join(0.2)

    def open_former(stream: RecordStream) -> SilentLink:
        assert share.replica.role is ReplicaRole.FOLLOWING
        return SilentLink()

    share.succeed(order, take, open_former)
    said.join(10)
    assert [each.task for each in share.store.part(StoreRecords).stream.followers] == [LEADER]
    assert (share.replica.role, share.replica.epoch) == (ReplicaRole.LEADING, 2)


def test_an_order_that_a_leader_passes_on_is_not_obeyed_before_what_it_has_sent() -> None:
    share = ReplicatedShare(0, FOLLOWER, SETTINGS["tcp"])
    records = share.follow(LEADER, 1, lambda: None)
    records.take(1, 1, CopyCompleted)
    order = Lead(0, 2, FOLLOWER, (LEADER,), leader_ended=True)
    with pytest.raises(RefusedError, match="sent record 3 of share 0 after 1"):
        share.succeed(order, lambda: records.take(1, 3, lambda: HandedOver(2, ME, "")))
    again = share.follow(LEADER, 1, lambda: None)
    again.take(1, 1, CopyCompleted)
    with pytest.raises(FencedError, match="does not follow"):
        share.succeed(order, lambda: records.take(1, 2, lambda: HandedOver(2, ME, "")))
    assert share.replica.role is ReplicaRole.FOLLOWING


def test_what_was_copied_in_part_is_thrown_away_when_the_link_ends() -> None:
    share = ReplicatedShare(0, FOLLOWER, SETTINGS["tcp"])
    earlier = share.follow(LEADER, 1, lambda: None)
    records = share.follow(LEADER, 1, lambda: None)
    records.take(1, 1, lambda: LogCopied({}, {}, ClosureMarks(), 7))
    earlier.end()
    assert share.store.global_step == 7
    records.end()
    assert (share.store.global_step, share.replica.role) == (0, ReplicaRole.GONE)
    share.follow(LEADER, 1, lambda: None)


def test_a_follower_that_takes_nothing_holds_up_no_push_for_longer_than_its_timeout() -> None:
    """As one that was stopped: its kernel takes some bytes, and then none."""
    settings = Settings(insecure=True, shared_memory=False, request_timeout_s=0.5)
    over = threading.Event()

    def takes_nothing(greeting: Greeting) -> bool:
        greeting.welcome()
        over.wait(60)
        return False

    with pair(settings, takes_nothing) as both:
        store = both.leader.store
        follower = Follower(FOLLOWER, both.link())
        store.part(StoreRecords).attach(follower)
        much = np.zeros(1 << 24, np.float32)
        store.part(StoreRecords).stream.send(
            follower, CopiedTile(0, 0, much.size, much)
        )  # no copy was begun: left out
        follower.blocks.add(0)
        store.part(StoreRecords).stream.send(follower, CopiedTile(0, 0, much.size, much))
        assert isinstance(follower.broken, TimeoutError)
        Worker(store, 0).push()
        over.set()


def test_a_link_on_which_nothing_happens_stays() -> None:
    settings = Settings(insecure=True, shared_memory=False, request_timeout_s=0.2)
    with pair(settings) as both:
        both.follow()
        [follower] = both.leader.store.part(StoreRecords).stream.followers
        assert not threading.Event().wait(0.7)
        assert follower.broken is None
        Worker(both.leader.store, 0).push()
        both.leader.store.part(StoreRecords).stream.confirm()


def test_a_follower_that_was_cut_off_from_its_leader_lets_reads_there_end() -> None:
    share = ReplicatedShare(0, FOLLOWER, SETTINGS["tcp"])
    records = share.follow(LEADER, 1, lambda: None)
    records.take(1, 1, lambda: LogCopied({}, {}, ClosureMarks(), 0))
    before = time.monotonic()
    records.take(1, 2, CopyCompleted)
    share.lead(Lead(0, 2, FOLLOWER))
    assert time.monotonic() - before >= replica.GRANT_S
