"""JSON and numbers from outside: one kind of error, whatever is wrong with them.

The interpreter's own reader of JSON raises RecursionError for nested brackets, and what it does
read can be nested so deeply that the next message about it is a RecursionError.
"""

import json
import re
from typing import Any

_MOST_LEVELS = 100


def read_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        json.JSONDecodeError: It is no JSON; says where.
        ValueError: It is nested more than 100 deep, has a number of thousands of digits, or is no
            text.
    """
    too_deep = f"it is nested more than {_MOST_LEVELS} deep"
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return value
    raise ValueError(too_deep)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def parse_number(text: str, most: int) -> int | None:
    """Parse a whole number in a text from outside: digits of ASCII; None: none, or above ``most``.

    ``int`` takes other digits and blanks, and raises for thousands of digits.
    """
    number = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else -1
    return number if 0 <= number <= most else None
