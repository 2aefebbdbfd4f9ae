"""Words that depend on a number, for messages and tables."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number and what it counts: ``1 cut``, ``2 cuts``, ``0 cuts``.

    Args:
        count: How many there are.
        noun: What one of them is called.
        plural: What several are called; empty: the noun with an s.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
