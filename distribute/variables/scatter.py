"""The ways in which rows of a variable are changed."""

from enum import StrEnum


class Scatter(StrEnum):
    """What is done with rows of a variable; the names of TensorFlow's ``scatter_`` methods."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MIN = "min"
    MAX = "max"
    UPDATE = "update"
