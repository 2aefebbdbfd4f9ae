"""Choice of a share to move so that the ps have about as much work as each other. Pure.

After failovers one ps may lead most shares; and shares are not equal. The work of a share is
measured at its leader: the bytes that workers push there, and the pushes.

A move has to pay: it takes a fifth off the busier one of two ps, and the bytes that are copied for
it come back within a minute. So moves end, and none undoes another. For constant work each move
lowers the sum of the squares of the work of all ps, and it does so still if what is measured is
wrong by a twentieth.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...cluster.replication.configuration import Configuration, ShareState
from ...core.task import TaskId

_LEAST_GAIN = 0.2  # of the busier ps
_PAYS_WITHIN_S = 60.0
_PUSH_BYTES = 64 * 1024  # a push costs as much as so many bytes of it
_MEASURED_S = 5.0  # under the same leader, in the same epoch


@dataclass(frozen=True, slots=True)
class ShareWork:
    """The work of a share for the ps that leads it.

    Attributes:
        now: Leader and followers of the share.
        bytes_per_s: Bytes that are pushed, with something for each push. Unit: bytes per second.
        held_bytes: Bytes of values and slots, to be copied.
    """

    now: Configuration
    bytes_per_s: float
    held_bytes: int


def move_to_newcomer(
    now: Iterable[Configuration], newcomers: Iterable[TaskId], servers: Iterable[TaskId]
) -> tuple[int, TaskId] | None:
    """Choose the share to move next, so that ps that have come lead as many as the others; None:
    they do.

    The numbers of shares alone count: what a newcomer costs is not known. One that follows a share
    gets that first.

    Args:
        now: All shares.
        newcomers: The ps that have come.
        servers: The ps that may lead.
    """
    led: dict[TaskId, list[Configuration]] = {task: [] for task in servers}
    for each in now:
        led.setdefault(each.leader, []).append(each)
    fewest = min(
        (task for task in newcomers if task in led),
        key=lambda task: (len(led[task]), task.index),
        default=None,
    )
    if fewest is None:
        return None
    most = max(led, key=lambda task: (len(led[task]), -task.index))
    if len(led[most]) - len(led[fewest]) < 2:
        return None
    chosen = max(led[most], key=lambda each: (fewest in each.followers, each.share))
    return chosen.share, fewest


def best_move(shares: Sequence[ShareWork], servers: Iterable[TaskId]) -> tuple[int, TaskId] | None:
    """Choose the share to move next, and the ps that is to lead it; None: no move pays.

    Of moves that gain as much, one to a ps that follows the share is made.

    Args:
        shares: All shares.
        servers: The ps that may lead.
    """
    work: defaultdict[TaskId, float] = defaultdict(float)
    for each in shares:
        work[each.now.leader] += each.bytes_per_s
    choices = [
        (gain, to in each.now.followers, -each.now.share, -to.index, to)
        for each in shares
        for to in servers
        if to != each.now.leader and _pays(gain := _gain(each, to, work), each, to, work)
    ]
    if not choices:
        return None
    _, _, share, _, to = max(choices, key=lambda choice: choice[:4])
    return -share, to


def _gain(share: ShareWork, to: TaskId, work: Mapping[TaskId, float]) -> float:
    """Compute by how much the busier one of two ps has less work after a move."""
    busier, moved = work[share.now.leader], share.bytes_per_s
    return busier - max(busier - moved, work[to] + moved)


def _pays(gain: float, share: ShareWork, to: TaskId, work: Mapping[TaskId, float]) -> bool:
    copies = 1 if to in share.now.followers else 2  # one follows it afterwards
    is_enough = gain > 0 and gain >= _LEAST_GAIN * work[share.now.leader]
    return is_enough and gain * _PAYS_WITHIN_S >= copies * share.held_bytes


@dataclass(slots=True)
class WorkMeter:
    """Measures the work of shares by what their leaders report. Not thread-safe."""

    _first: dict[int, tuple[Configuration, float, int]] = field(default_factory=dict)
    _last: dict[int, tuple[float, int, int]] = field(default_factory=dict)

    def see(self, now_s: float, now: Configuration, state: ShareState) -> None:
        """Take a leader's report.

        Args:
            now_s: Time at which the report came. Unit: seconds.
            now: The share's configuration.
            state: State of the share at the leader.
        """
        cost = state.received_bytes + _PUSH_BYTES * state.pushes
        if state.epoch != now.epoch:
            return
        if now.share not in self._first or self._first[now.share][0] != now:
            self._first[now.share] = now, now_s, cost
        self._last[now.share] = now_s, cost, state.held_bytes

    def work(self, configurations: Iterable[Configuration]) -> list[ShareWork]:
        """Compute the work of all shares; nothing until each of them was led as it is now for a
        while.
        """
        measured = []
        for now in configurations:
            before, begun_s, begun = self._first.get(now.share, (None, 0.0, 0))
            last_s, cost, held_bytes = self._last.get(now.share, (0.0, 0, 0))
            if before != now or last_s - begun_s < _MEASURED_S:
                return []
            measured.append(ShareWork(now, (cost - begun) / (last_s - begun_s), held_bytes))
        return measured
