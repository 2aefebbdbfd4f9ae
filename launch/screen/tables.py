"""Tables on the screen: one look for all of them."""

from collections.abc import Collection

from rich import box
from rich.table import Table


def new_table(*names: str, right: Collection[str] = ()) -> Table:
    """Make a table without frames, of which the last column is folded.

    Args:
        names: Titles of the columns.
        right: Columns whose values are numbers.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in names:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name != names[-1],
            overflow="fold",
        )
    return table
