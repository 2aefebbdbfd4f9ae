"""The chief's decisions about all shares, when a ps reports, is lost, or is to leave."""

from copy import deepcopy
from dataclasses import replace

import pytest

from ropewalk.annexes.replication.decisions import Shares, lead_orders, other_orders
from ropewalk.cluster.replication import configuration
from ropewalk.cluster.replication.configuration import (
    Configuration,
    CopyTo,
    FollowerState,
    GiveUpShare,
    HandOver,
    Lead,
    MovePhase,
    Order,
    PsReport,
    Reconfiguration,
    ReplicaRole,
    ShareState,
    first_leaders,
)
from ropewalk.core.errors import NotFoundError, RefusedError
from ropewalk.core.task import TaskId

PS = [TaskId("ps", index) for index in range(4)]


def told(decided: list[Reconfiguration]) -> list[Order]:
    """The orders of some decisions, in the order in which they are given."""
    return [*other_orders(decided), *lead_orders(decided)]


def leads(share: int, epoch: int, *followers: FollowerState) -> ShareState:
    return ShareState(share, ReplicaRole.LEADING, epoch, True, followers)


def joined(index: int) -> FollowerState:
    return FollowerState(PS[index], has_joined=True)


def new_job(servers: int, replicas: int = 2, number: int = 0) -> Shares:
    """Shares of ps that have just begun; as many as there are ps, or another number."""
    homes = first_leaders(number, PS[:servers])
    shares = Shares(replicas, homes)
    for task in PS[:servers]:
        decided = shares.reported(task, PsReport(1))
        assert told(decided) == [Lead(share, 1, ps) for share, ps in homes.items() if ps == task]
    return shares


def followed(servers: int) -> Shares:
    """The same, each share with a follower: the next ps."""
    shares = new_job(servers)
    for order in shares.copies():
        state = leads(order.share, 1, FollowerState(order.follower, has_joined=True))
        shares.reported(order.to, PsReport(1, shares=(state,)))
    return shares


def test_each_share_is_copied_to_the_next_ps() -> None:
    shares = new_job(3)
    assert shares.copies() == [
        CopyTo(share, 1, PS[share], PS[(share + 1) % 3]) for share in range(3)
    ]
    assert shares.copies() == [], "each of them is under way"


def test_a_follower_counts_once_its_leader_says_that_it_has_joined() -> None:
    shares = new_job(2)
    shares.copies()
    copying = leads(0, 1, FollowerState(PS[1], position=9))
    assert shares.reported(PS[0], PsReport(1, shares=(copying,))) == []
    assert shares.copies() == []
    [decided] = shares.reported(PS[0], PsReport(1, shares=(leads(0, 1, joined(1)),)))
    assert decided.write == Configuration(0, 2, PS[0], (PS[1],))
    assert told([decided]) == [Lead(0, 2, PS[0], (PS[1],))]
    again = shares.reported(PS[0], PsReport(1, shares=(leads(0, 1, joined(1)),)))
    assert again == [], "what it said in an earlier epoch"


def test_the_follower_of_a_lost_leader_leads_and_a_new_one_is_found() -> None:
    shares = followed(3)
    decided = shares.gone(PS[0])
    assert told(decided) == [Lead(0, 3, PS[1]), Lead(2, 3, PS[2])]
    assert shares.lost == set()
    assert shares.copies() == [CopyTo(0, 3, PS[1], PS[2]), CopyTo(2, 3, PS[2], PS[1])]


def test_a_ps_that_was_started_again_has_nothing() -> None:
    shares = followed(2)
    decided = shares.reported(PS[0], PsReport(2))
    assert told(decided) == [Lead(0, 3, PS[1]), Lead(1, 3, PS[1])]
    assert {(copy.share, copy.follower) for copy in shares.copies()} == {(0, PS[0]), (1, PS[0])}


def test_a_lost_follower_is_left_out_and_copied_to_again() -> None:
    shares = followed(2)
    lost = leads(0, 2, FollowerState(PS[1], has_joined=True, is_lost=True))
    [decided] = shares.reported(PS[0], PsReport(1, shares=(lost,)))
    assert told([decided]) == [Lead(0, 3, PS[0])]
    assert shares.copies() == [CopyTo(0, 3, PS[0], PS[1])]


def test_a_joiner_that_is_lost_before_it_is_counted_on_is_forgotten() -> None:
    """Its leader waits for it, and would for ever."""
    shares = new_job(2)
    shares.copies()
    lost = leads(0, 1, FollowerState(PS[1], is_lost=True, is_needed=True))
    [decided] = shares.reported(PS[0], PsReport(1, shares=(lost,)))
    assert told([decided]) == [Lead(0, 2, PS[0])]
    assert shares.reported(PS[0], PsReport(1, shares=(lost,))) == [], "it has obeyed not yet"
    gone = new_job(2)
    gone.copies()
    gone.gone(PS[1])
    late = leads(0, 1, FollowerState(PS[1], has_joined=True, is_needed=True))
    assert told(gone.reported(PS[0], PsReport(1, shares=(late,)))) == [Lead(0, 2, PS[0])]
    assert gone.reported(PS[0], PsReport(1, shares=(late,))) == [], "it has obeyed not yet"


@pytest.mark.parametrize("is_needed", [False, True], ids=["copied to", "waited for"])
def test_a_joiner_that_stands_still_is_forgotten(is_needed: bool) -> None:
    """Its link is whole, so its leader hears nothing of it, and pushes wait."""
    shares = new_job(3)
    shares.copies()
    joins = PsReport(1, shares=(leads(0, 1, FollowerState(PS[1], is_needed=is_needed)),))
    assert shares.reported(PS[0], joins) == []
    assert Lead(0, 2, PS[0]) in told(shares.gone(PS[1], is_suspected=True))
    assert shares.reported(PS[0], joins) == [], "it has obeyed not yet"
    assert shares.reported(PS[0], PsReport(1, shares=(leads(0, 2),))) == []
    assert CopyTo(0, 2, PS[0], PS[2]) in shares.copies()


def test_a_copy_that_breaks_off_is_made_again() -> None:
    shares = new_job(2)
    first = shares.copies()
    broken = leads(0, 1, FollowerState(PS[1], is_lost=True))
    assert shares.reported(PS[0], PsReport(1, shares=(broken,))) == []
    assert shares.copies() == first[:1]
    assert shares.copies() == []
    shares.copy_refused(first[0])
    assert shares.copies(lambda share: False) == [], "it is not time yet"
    assert shares.copies() == first[:1]


def test_a_leader_that_may_answer_no_more_is_left_out() -> None:
    shares = followed(2)
    broken = ShareState(0, ReplicaRole.LEADING, 2, is_whole=False)
    assert told(shares.reported(PS[0], PsReport(1, shares=(broken,)))) == [Lead(0, 3, PS[1])]
    shares.obeyed(Lead(0, 3, PS[1]))
    assert told(shares.reported(PS[0], PsReport(1, shares=(broken,)))) == [GiveUpShare(0, 3, PS[0])]


def test_a_share_whose_replicas_are_all_lost_is_lost() -> None:
    shares = followed(2)
    shares.gone(PS[0])
    assert shares.gone(PS[1]) == []
    assert shares.lost == {0, 1}
    assert shares.reported(PS[0], PsReport(2)) == [], "an empty one begins no share anew"


def test_the_last_replica_is_counted_on_while_it_is_only_suspected() -> None:
    shares = followed(2)
    shares.gone(PS[0], is_suspected=True)
    assert shares.gone(PS[1], is_suspected=True) == []
    assert shares.lost == set()
    assert {each.replicas for each in shares.configurations.values()} == {(PS[1],)}
    assert not shares.may_hear(PS[1]), "an order would wait for it, and others for that"
    shares.reported(PS[1], PsReport(1))
    assert shares.may_hear(PS[1])
    assert shares.gone(PS[1]) == []
    assert shares.lost == {0, 1}


def test_a_ps_that_is_to_leave_goes_when_others_have_what_it_has() -> None:
    shares = followed(3)
    shares.reported(PS[0], PsReport(1, draining=True, shares=(leads(0, 2, joined(1)),)))
    assert not shares.may_leave(PS[0])
    assert told(shares.hand_over()) == [HandOver(0, 3, PS[0], PS[1])]
    assert shares.hand_over() == []
    assert not shares.may_leave(PS[0]), "the other one does not lead yet"
    led = PsReport(1, shares=(leads(0, 3), leads(1, 2, joined(2))))
    assert told(shares.reported(PS[1], led)) == [Lead(0, 4, PS[1])]
    shares.reported(PS[2], PsReport(1, shares=(leads(2, 2, joined(0)),)))
    assert shares.hand_over() == [], "another one has to have a copy of share 2 first"
    assert {copy.follower for copy in shares.copies()} == {PS[1], PS[2]}, "and not to it"
    shares.reported(PS[2], PsReport(1, shares=(leads(2, 2, joined(0), joined(1)),)))
    shares.reported(PS[2], PsReport(1, shares=(leads(2, 3, joined(0), joined(1)),)))
    assert told(shares.hand_over()) == [Lead(2, 4, PS[2], (PS[1],))]
    assert shares.may_leave(PS[0])
    assert not shares.may_leave(PS[1]), "nobody has asked it to"


def test_a_job_is_replicated_while_each_share_has_its_replicas_on_ps_that_stay() -> None:
    shares = followed(2)
    history = [new_job(2).are_replicated, shares.are_replicated]
    shares.reported(PS[1], PsReport(1, draining=True, shares=(leads(1, 2, joined(0)),)))
    history.append(shares.are_replicated)
    shares.reported(PS[1], PsReport(2))  # its next process has nothing
    history.append(shares.are_replicated)
    for copy in shares.copies():
        shares.reported(PS[0], PsReport(1, shares=(leads(copy.share, 3, joined(1)),)))
    history.append(shares.are_replicated)
    shares.gone(PS[0])
    shares.gone(PS[1])
    history.append(shares.are_replicated)
    assert history == [False, True, False, False, True, False]


def test_a_ps_without_a_follower_is_copied_first() -> None:
    shares = new_job(2)
    shares.reported(PS[0], PsReport(1, draining=True, shares=(leads(0, 1),)))
    assert shares.hand_over() == []
    assert shares.copies() == [CopyTo(0, 1, PS[0], PS[1])], "share 1 has no other ps"
    draining = PsReport(1, draining=True, shares=(leads(0, 1, joined(1)),))
    shares.reported(PS[0], draining)
    assert told(shares.hand_over()) == [HandOver(0, 3, PS[0], PS[1])]
    shares.reported(PS[1], PsReport(1, shares=(leads(0, 3),)))
    assert shares.may_leave(PS[0])


def test_a_leader_that_is_to_leave_hands_over_to_a_follower_that_stays() -> None:
    shares = followed(3)
    shares.begin_move(0, PS[2])
    shares.reported(PS[1], PsReport(1, draining=True))
    with_both = leads(0, 2, joined(1), joined(2))
    decided = shares.reported(PS[0], PsReport(1, draining=True, shares=(with_both,)))
    decided += shares.hand_over()
    assert told(decided)[:1] == [HandOver(0, 4, PS[0], PS[2])]


def test_a_leader_leads_again_if_the_ps_that_it_has_handed_over_to_is_lost() -> None:
    shares = followed(3)
    shares.begin_move(0, PS[1])
    assert told(shares.hand_over()) == [HandOver(0, 3, PS[0], PS[1])]
    assert told(shares.gone(PS[1]))[0] == Lead(0, 4, PS[0])
    shares.hand_over()
    assert shares.move is not None
    assert shares.move.reason == "it does not answer"


def test_a_move_to_a_ps_that_was_started_again_before_it_led_has_failed() -> None:
    shares = followed(3)
    shares.begin_move(0, PS[1])
    shares.hand_over()
    shares.reported(PS[1], PsReport(2))
    assert shares.hand_over() == []
    assert shares.move is not None
    assert shares.move.reason == "it was lost before it led"


def test_a_new_leader_whose_chief_restarts_goes_on_without_those_it_has_no_link_to() -> None:
    before = followed(3)
    before.begin_move(0, PS[1])
    before.hand_over()
    after = Shares(2, first_leaders(0, PS[:3]), before.configurations.values(), before.processes)
    assert Lead(0, 3, PS[1], (PS[0],)) in after.begin()
    led = PsReport(1, shares=(leads(0, 3), leads(1, 2, joined(2))))
    assert told(after.reported(PS[1], led)) == [Lead(0, 4, PS[1])]


def test_a_ps_that_was_left_out_is_told_so_when_it_is_heard_of_again() -> None:
    """It stood still, and knows nothing of it."""
    shares = followed(2)
    shares.gone(PS[0])
    for share in (0, 1):
        shares.obeyed(Lead(share, 3, PS[1]))
    old = PsReport(
        1, shares=(leads(0, 2, joined(1)), ShareState(1, ReplicaRole.FOLLOWING, 2, is_whole=True))
    )
    assert told(shares.reported(PS[0], old)) == [GiveUpShare(0, 3, PS[0]), GiveUpShare(1, 3, PS[0])]
    gone = PsReport(1, shares=(ShareState(0, ReplicaRole.GONE, 3, is_whole=False),))
    assert told(shares.reported(PS[0], gone)) == []
    copied_to = ShareState(0, ReplicaRole.FOLLOWING, 3, is_whole=False)
    assert told(shares.reported(PS[0], PsReport(1, shares=(copied_to,)))) == []


def test_a_ps_that_was_left_out_goes_on_until_another_one_leads() -> None:
    """Both were suspected, by a chief that was itself slow, and the one that is to lead still is;
    or the chief was lost before it had told it.
    """
    shares = followed(2)
    for task in PS[:2]:
        shares.gone(task, is_suspected=True)
    assert shares.configurations[0] == Configuration(0, 3, PS[1])
    old = PsReport(1, shares=(leads(0, 2, joined(1)),))
    assert told(shares.reported(PS[0], old)) == []
    restarted = Shares(2, {}, shares.configurations.values(), shares.processes)
    assert told(restarted.reported(PS[0], old)) == []
    shares.obeyed(Lead(0, 3, PS[1]))
    assert told(shares.reported(PS[0], old)) == [GiveUpShare(0, 3, PS[0])]


def test_of_two_decisions_about_a_share_the_later_one_is_told() -> None:
    shares = followed(2)
    draining = PsReport(1, draining=True, shares=(leads(0, 2, joined(1)),))
    decided = [*shares.reported(PS[0], draining), *shares.hand_over()]
    assert lead_orders(decided) == [HandOver(0, 3, PS[0], PS[1])]
    anew = configuration.anew(shares.configurations[0])
    assert lead_orders([*decided, anew]) == [Lead(0, 4, PS[1], (PS[0],))]


def test_the_last_ps_is_stuck() -> None:
    shares = followed(2)
    shares.gone(PS[1])
    shares.reported(PS[0], PsReport(1, draining=True, shares=(leads(0, 3), leads(1, 3))))
    assert shares.hand_over() == []
    assert shares.is_stuck(PS[0])
    assert not shares.may_leave(PS[0])


def test_a_restarted_chief_gives_the_last_orders_again() -> None:
    before = followed(2)
    after = Shares(2, first_leaders(0, PS[:3]), before.configurations.values(), before.processes)
    assert after.begin() == [Lead(0, 2, PS[0], (PS[1],)), Lead(1, 2, PS[1], (PS[0],))]
    assert after.reported(PS[0], PsReport(1, shares=(leads(0, 2, joined(1)),))) == []
    decided = after.reported(PS[1], PsReport(7))
    assert told(decided) == [Lead(0, 3, PS[0]), Lead(1, 3, PS[0])]


# -- moves -----------------------------------------------------------------------------------------


def phase_of(shares: Shares) -> MovePhase | None:
    return shares.move.phase if shares.move is not None else None


def test_a_share_moves_to_its_follower_at_once() -> None:
    shares = followed(3)
    begun = shares.begin_move(0, PS[1])
    assert (begun.number, begun.source, begun.to) == (1, PS[0], PS[1])
    assert told(shares.hand_over()) == [HandOver(0, 3, PS[0], PS[1])]
    shares.obeyed(Lead(0, 3, PS[1], (PS[0],)))
    assert phase_of(shares) is MovePhase.HANDING_OVER, "it answers nothing yet"
    report = PsReport(1, shares=(leads(0, 3), leads(1, 2, joined(2))))
    assert told(shares.reported(PS[1], report)) == [Lead(0, 4, PS[1])]
    shares.reported(PS[1], PsReport(1, shares=(leads(0, 4), leads(1, 2, joined(2)))))
    assert phase_of(shares) is MovePhase.DONE
    assert shares.copies() == [CopyTo(0, 4, PS[1], PS[0])], "it has a replica less"
    kept = PsReport(1, shares=(ShareState(0, ReplicaRole.FOLLOWING, 3, is_whole=True),))
    assert told(shares.reported(PS[0], kept)) == [GiveUpShare(0, 4, PS[0])]


def test_a_ps_that_a_share_has_moved_from_follows() -> None:
    shares = followed(3)
    shares.begin_move(0, PS[1])
    shares.hand_over()
    report = PsReport(1, shares=(leads(0, 3, joined(0)), leads(1, 2, joined(2))))
    assert told(shares.reported(PS[1], report)) == []
    assert phase_of(shares) is MovePhase.DONE
    assert shares.copies() == []
    assert shares.hand_over() == []


def test_a_ps_that_a_share_of_one_replica_has_moved_from_does_not_follow() -> None:
    shares = Shares(1, {0: PS[0]}, [Configuration(0, 2, PS[0])])
    shares.reported(PS[0], PsReport(1, shares=(leads(0, 2),)))
    shares.reported(PS[1], PsReport(1))
    shares.begin_move(0, PS[1])
    assert shares.copies() == [CopyTo(0, 2, PS[0], PS[1])]
    shares.reported(PS[0], PsReport(1, shares=(leads(0, 2, joined(1)),)))
    assert told(shares.hand_over()) == [HandOver(0, 4, PS[0], PS[1])]
    shares.reported(PS[1], PsReport(1, shares=(leads(0, 4, joined(0)),)))
    assert told(shares.hand_over()) == [Lead(0, 5, PS[1])]


def test_a_ps_that_is_to_leave_follows_until_another_one_has_a_copy() -> None:
    shares = followed(3)
    shares.reported(PS[0], PsReport(1, draining=True, shares=(leads(0, 2, joined(1)),)))
    shares.hand_over()
    led = PsReport(1, shares=(leads(0, 3, joined(0)), leads(1, 2, joined(2))))
    assert shares.reported(PS[1], led) == []
    in_haste = deepcopy(shares)
    assert told(in_haste.hand_over(lambda task: False)) == [Lead(0, 4, PS[1])]
    assert shares.hand_over() == []
    assert CopyTo(0, 3, PS[1], PS[2]) in shares.copies()
    led = PsReport(1, shares=(leads(0, 3, joined(0), joined(2)), leads(1, 2, joined(2))))
    assert told(shares.reported(PS[1], led)) == [Lead(0, 4, PS[1], (PS[0], PS[2]))]
    led = PsReport(1, shares=(leads(0, 4, joined(0), joined(2)), leads(1, 2, joined(2))))
    assert shares.reported(PS[1], led) == []
    assert Lead(0, 5, PS[1], (PS[2],)) in told(shares.hand_over())


def test_a_share_that_moves_elsewhere_is_copied_to_first() -> None:
    shares = followed(3)
    shares.begin_move(0, PS[2])
    assert shares.hand_over() == []
    assert shares.copies() == [CopyTo(0, 2, PS[0], PS[2])]
    copying = FollowerState(PS[2], copied_bytes=30)
    report = PsReport(1, shares=(replace(leads(0, 2, joined(1), copying), held_bytes=40),))
    assert shares.reported(PS[0], report) == []
    assert shares.move is not None
    assert (shares.move.copied_bytes, shares.move.total_bytes) == (30, 40)
    assert shares.copies() == []
    decided = shares.reported(PS[0], PsReport(1, shares=(leads(0, 2, joined(1), joined(2)),)))
    decided += shares.hand_over()
    assert told(decided) == [HandOver(0, 4, PS[0], PS[2])]
    assert shares.configurations[0] == Configuration(0, 4, PS[2], (PS[0],)), "and nobody else"
    follows = PsReport(1, shares=(ShareState(0, ReplicaRole.FOLLOWING, 3, is_whole=True),))
    assert told(shares.reported(PS[1], follows)) == [], "its leader may need it"
    assert shares.reported(PS[2], PsReport(1, shares=(leads(0, 4, joined(0)),))) == []
    assert told(shares.reported(PS[1], follows)) == [GiveUpShare(0, 4, PS[1])]


def test_what_cannot_move_is_refused() -> None:
    shares = followed(3)
    with pytest.raises(NotFoundError, match="there is no share 9; the job has 0, 1, 2"):
        shares.begin_move(9, PS[1])
    with pytest.raises(NotFoundError, match="there is no ps:3; the job has ps:0, ps:1, ps:2"):
        shares.begin_move(0, PS[3])
    with pytest.raises(RefusedError, match="it leads it already"):
        shares.begin_move(0, PS[0])
    shares.reported(PS[2], PsReport(1, draining=True))
    with pytest.raises(RefusedError, match="it was asked to leave"):
        shares.begin_move(0, PS[2])
    shares.gone(PS[2])
    with pytest.raises(RefusedError, match="it does not answer"):
        shares.begin_move(0, PS[2])
    first = shares.begin_move(0, PS[1])
    assert shares.begin_move(0, PS[1]) is first, "asked for again"
    with pytest.raises(RefusedError, match="the move of share 0 from ps:0 to ps:1 is under way"):
        shares.begin_move(1, PS[0])


@pytest.mark.parametrize("draining", [True, False])
def test_a_move_to_a_ps_that_is_lost_or_leaves_fails_and_changes_nothing(*, draining: bool) -> None:
    shares = followed(3)
    shares.begin_move(0, PS[2])
    shares.copies()
    if draining:
        shares.reported(PS[2], PsReport(1, draining=True))
    else:
        shares.gone(PS[2])
    before = shares.configurations[0]
    shares.hand_over()
    assert shares.configurations[0] is before
    assert phase_of(shares) is MovePhase.FAILED
    assert shares.move is not None
    assert shares.move.reason == ("it was asked to leave" if draining else "it does not answer")
    assert shares.begin_move(0, PS[1]).number == 2


def test_a_move_is_given_up_when_its_copy_breaks_off_again_and_again() -> None:
    shares = followed(3)
    shares.begin_move(0, PS[2])
    for _ in range(3):
        [order] = shares.copies()
        shares.copy_refused(order)
    assert shares.copies() == []
    assert shares.move is not None
    assert "the copy to ps:2 broke off 3 times" in shares.move.reason


def test_a_move_goes_on_when_its_leader_is_lost() -> None:
    """The ps that follows leads, and may be the one that was to lead."""
    shares = followed(3)
    shares.begin_move(0, PS[2])
    shares.copies()
    shares.gone(PS[0])
    shares.hand_over()
    assert CopyTo(0, 3, PS[1], PS[2]) in shares.copies()
    to_follower = followed(3)
    to_follower.begin_move(0, PS[1])
    assert told(to_follower.gone(PS[0]))[0] == Lead(0, 3, PS[1])
    assert to_follower.hand_over() == []
    to_follower.reported(PS[1], PsReport(1, shares=(leads(0, 3),)))
    assert phase_of(to_follower) is MovePhase.DONE
    lost = followed(2)
    lost.begin_move(0, PS[1])
    lost.gone(PS[1])
    lost.gone(PS[0])
    lost.hand_over()
    assert lost.move is not None
    assert lost.move.reason == "no ps has the share any more"


def test_the_ps_lead_more_shares_in_turn() -> None:
    shares = new_job(2, number=5)
    assert {number: now.leader for number, now in sorted(shares.configurations.items())} == {
        0: PS[0], 1: PS[1], 2: PS[0], 3: PS[1], 4: PS[0]
    }  # fmt: skip
    copies = {order.share: order.follower for order in shares.copies()}
    assert copies == {0: PS[1], 1: PS[0], 2: PS[1], 3: PS[0], 4: PS[1]}


def test_without_replicas_a_ps_that_leaves_is_copied_from_and_the_share_is_led_alone_again() -> (
    None
):
    shares = new_job(2, replicas=1)
    assert shares.copies() == []
    shares.reported(PS[0], PsReport(1, draining=True))
    assert shares.hand_over() == []
    [copy] = shares.copies()
    assert copy == CopyTo(0, 1, PS[0], PS[1])
    state = PsReport(1, draining=True, shares=(leads(0, 1, joined(1)),))
    decided = [*shares.reported(PS[0], state), *shares.hand_over()]
    assert told(decided)[-1:] == [HandOver(0, 3, PS[0], PS[1])]
    decided = [*shares.reported(PS[1], PsReport(1, shares=(leads(0, 3),))), *shares.hand_over()]
    assert told(decided) == [Lead(0, 4, PS[1])]
    assert shares.may_leave(PS[0])
    assert shares.copies() == []


def test_a_follower_that_a_failed_move_leaves_behind_is_left_out() -> None:
    shares = new_job(3, replicas=1)
    shares.begin_move(0, PS[2])
    shares.copies()
    shares.reported(PS[2], PsReport(1, draining=True))
    state = PsReport(1, shares=(leads(0, 1, joined(2)),))
    assert told([*shares.reported(PS[0], state), *shares.hand_over()]) == [
        Lead(0, 2, PS[0], (PS[2],))
    ]
    assert shares.move is not None
    assert shares.move.phase is MovePhase.FAILED
    shares.reported(PS[2], PsReport(1))  # it stays
    assert shares.hand_over() == [], "the leader may not have heard of it yet"
    led = PsReport(1, shares=(leads(0, 2, joined(2)),))
    decided = [*shares.reported(PS[0], led), *shares.hand_over()]
    assert told(decided) == [Lead(0, 3, PS[0])]


def spread_job(number: int = 8) -> Shares:
    """A job of two ps that is to grow, once its ps have nothing to do."""
    homes = first_leaders(number, PS[:2])
    shares = Shares(1, homes, spreads=True)
    for task in PS[:2]:
        shares.reported(task, PsReport(1))
    assert shares.move_to_newcomer() is None
    return shares


def make_move(shares: Shares, number: int, to: TaskId) -> None:
    """Move a share, as its leader and the ps that is to lead report it."""
    now = shares.configurations[number]
    shares.begin_move(number, to)
    assert shares.move_to_newcomer() is None, "one after the other"
    state = leads(number, now.epoch, joined(to.index))
    shares.reported(now.leader, PsReport(1, shares=(state,)))
    shares.hand_over()
    led = PsReport(1, shares=(leads(number, now.epoch + 2),))
    [alone] = told(shares.reported(to, led))
    assert isinstance(alone, Lead)
    shares.obeyed(alone)
    shares.reported(to, PsReport(1, shares=(leads(number, alone.epoch),)))


def test_a_ps_that_comes_is_given_as_many_shares_as_the_others() -> None:
    shares = spread_job()
    shares.reported(PS[2], PsReport(1))
    moves = []
    while (move := shares.move_to_newcomer()) is not None:
        make_move(shares, *move)
        moves.append(move)
    assert moves == [(6, PS[2]), (7, PS[2])]
    shares.begin_move(0, PS[1])
    make_move(shares, 0, PS[1])
    assert shares.move_to_newcomer() is None, "what an operator has moved stays"


def test_a_ps_that_comes_back_is_given_shares_once_the_one_that_leaves_has_gone() -> None:
    shares = spread_job(4)
    for number in (0, 2):
        make_move(shares, number, PS[1])
    shares.reported(PS[1], PsReport(1, draining=True))
    shares.gone(PS[0])
    shares.reported(PS[0], PsReport(2))
    assert shares.move_to_newcomer() is None
    shares.reported(PS[1], PsReport(1))
    assert shares.move_to_newcomer() == (3, PS[0])


def test_without_ps_shares_a_ps_that_comes_back_only_follows() -> None:
    shares = followed(2)
    shares.gone(PS[0])
    shares.reported(PS[0], PsReport(2))
    led = tuple(leads(number, 3, joined(0)) for number in range(2))
    shares.reported(PS[1], PsReport(1, shares=led))
    assert shares.settled() == PS[:2]
    assert shares.move_to_newcomer() is None
