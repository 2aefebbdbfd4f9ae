"""How much of a mapping is in memory."""

from pathlib import Path

from windlass.core.arrays.dtypes import Array


def resident_bytes(array: Array) -> int:
    """Bytes of the mapping that holds an array that this process has in memory."""
    address, inside = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            first, last = (int(each, 16) for each in name.split("-"))
            inside = first <= address < last
        elif inside and name == "Rss:":
            return int(rest[0]) * 1024
    raise AssertionError(f"no mapping has the address {address:x}")
