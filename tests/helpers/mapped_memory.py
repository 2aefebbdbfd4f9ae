"""What the kernel says of a mapping."""

from pathlib import Path

from ropewalk.core.arrays.dtypes import Array


def resident_bytes(array: Array) -> int:
    """Bytes of the mapping that holds an array that this process has in memory."""
    return int(_said_of(array, "Rss:")[0]) * 1024


def wants_huge_pages(array: Array) -> bool:
    """Whether huge pages were asked for, for the mapping that holds an array."""
    return "hg" in _said_of(array, "VmFlags:")


def _said_of(array: Array, what: str) -> list[str]:
    address, inside = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            first, last = (int(each, 16) for each in name.split("-"))
            inside = first <= address < last
        elif inside and name == what:
            return rest
    raise AssertionError(f"no mapping has the address {address:x}")
