"""Division of a standing cluster among its drivers: who is next, and whose things make room. Pure.

Drivers are told apart by what their credentials say, which is a role and a job (or a team, called
so). One of them has half at most of what there is a bound for; and where something has to go, it is
of whoever has most, so that a driver within its share loses nothing to another one.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

UNKNOWN = "somebody"
"""Name of a driver that has not shown who it is: it is bounded by the whole alone."""

_Item = TypeVar("_Item")
_Owner = TypeVar("_Owner", bound=Hashable)


def share_of(owner: str, limit: int) -> int:
    """Compute how much of a limit one driver may have."""
    return limit if owner in ("", UNKNOWN) else max(1, limit // 2)


def next_of(
    waiting: Sequence[_Item], owner: Callable[[_Item], str], has: Mapping[str, int]
) -> _Item:
    """Find the item whose owner has least; the first of several.

    Args:
        waiting: The items, in the order in which they came.
        owner: Returns the owner of an item.
        has: Number of items that each owner has already.
    """
    return min(waiting, key=lambda item: has.get(owner(item), 0))


def to_go(
    items: Iterable[_Item],
    owner: Callable[[_Item], _Owner],
    most: int,
    size: Callable[[_Item], int] = lambda _: 1,
) -> list[_Item]:
    """Choose items to drop until the others fit, each the oldest of the owner who has most then.

    Args:
        items: The oldest first.
        owner: Returns the owner of an item.
        most: Size of all that fits.
        size: Returns the size of an item.
    """
    left = list(items)
    has: Counter[_Owner] = Counter()
    for item in left:
        has[owner(item)] += size(item)
    gone: list[_Item] = []
    while has.total() > most:
        [(largest, _)] = has.most_common(1)
        oldest = next(item for item in left if owner(item) == largest)
        left.remove(oldest)
        has[largest] -= size(oldest)
        gone.append(oldest)
    return gone
