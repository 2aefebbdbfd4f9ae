"""Kernels of the key index; ``index.py`` checks their arguments, ``index_arrays.py`` does the same.

An entry is two int64: the key, and the value that belongs to it plus one; zero means empty, so any
key is allowed. Entries lie in segments of memory of their own, which kernels get as addresses. The
upper bits of a key's hash choose its segment, the lower half its home there: ``home = (low half *
size) >> 32``. From there on entries are probed one by one, past the end from the beginning. Homes
grow with the hash, whatever the size, so growing a segment reads and writes memory in order.

The hash is SipHash-1-3 of the key's eight bytes (Aumasson and Bernstein, 2012), under a secret of
the process: keys that were chosen to collide do not, because their author does not know it.
"""

import numpy as np

from ....engine.jit import (
    INT64,
    changed,
    inlined,
    load_word,
    prefetch,
    prefetch_word,
    read,
    stack_array,
    store_word,
)
from ....engine.row_kernels import KernelRegistry
from .distinct import MOST_PS

FUNCTIONS = KernelRegistry()
TILE = 256  # keys whose homes are worked out at once; what is noted of them stays in the caches
_ENTRY = 16  # bytes
_AHEAD = np.uint64(16)  # keys between the one at work and the one whose memory is asked for
_PAGE = 4096  # bytes
_NEXT = 32  # bytes: what is probed next may be in another cache line
_U1, _U13, _U16, _U17, _U21, _U32 = (np.uint64(n) for n in (1, 13, 16, 17, 21, 32))
_U43, _U47, _U48, _U51 = (np.uint64(n) for n in (43, 47, 48, 51))
_LOW = np.uint64(0xFFFFFFFF)
_V0, _V1 = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D)
_V2, _V3 = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)
_LENGTH = np.uint64(8 << 56)
_END = np.uint64(0xFF)
_hashes, _places = stack_array(TILE, np.uint64), stack_array(TILE, np.int64)


@inlined
def _hash(key, k0, k1):  # type: ignore[no-untyped-def]
    v0, v1, v2, v3 = k0 ^ _V0, k1 ^ _V1, k0 ^ _V2, k1 ^ _V3
    m = np.uint64(key)
    for step in range(5):
        if step == 0:
            v3 ^= m
        elif step == 1:
            v0 ^= m
            v3 ^= _LENGTH
        elif step == 2:
            v0 ^= _LENGTH
            v2 ^= _END
        v0 += v1
        v1 = (v1 << _U13) | (v1 >> _U51)
        v1 ^= v0
        v0 = (v0 << _U32) | (v0 >> _U32)
        v2 += v3
        v3 = (v3 << _U16) | (v3 >> _U48)
        v3 ^= v2
        v0 += v3
        v3 = (v3 << _U21) | (v3 >> _U43)
        v3 ^= v0
        v2 += v1
        v1 = (v1 << _U17) | (v1 >> _U47)
        v1 ^= v2
        v2 = (v2 << _U32) | (v2 >> _U32)
    return v0 ^ v1 ^ v2 ^ v3


@inlined
def hash_tile(keys, start, count, secret, hashes):  # type: ignore[no-untyped-def]
    """Hash ``count`` keys from ``keys[start]`` on into ``hashes``."""
    k0, k1, first = secret[0], secret[1], np.uint64(start)
    for j in range(np.uint64(count)):  # without sign: the compiler makes wider vectors of it
        hashes[j] = _hash(keys[first + j], k0, k1)


@inlined
def segment_of(hashed, shift):  # type: ignore[no-untyped-def]
    """Take the upper ``63 - shift`` bits of a hash."""
    # In two steps: with one segment all 64 bits go.
    return np.int64((hashed >> _U1) >> shift)


@inlined
def _home(hashed, size):  # type: ignore[no-untyped-def]
    return np.int64(((hashed & _LOW) * np.uint64(size)) >> _U32)


@inlined
def _locate_tile(hashes, count, addresses, sizes, shift, places, ends):  # type: ignore[no-untyped-def]
    """Find where probing begins and where its segment ends; ask for the memory of the first
    keys.
    """
    for j in range(np.uint64(count)):  # by itself: the compiler makes vectors of it
        segment = np.uint64(segment_of(hashes[j], shift))
        first, size = addresses[segment], sizes[segment]
        places[j] = first + _ENTRY * _home(hashes[j], size)
        ends[j] = first + _ENTRY * size
    for j in range(min(np.uint64(count), _AHEAD)):
        prefetch_word(places[j])
        prefetch_word(places[j] + _NEXT)


@inlined
def _prefetch_ahead(places, j, count):  # type: ignore[no-untyped-def]
    """Ask for the memory of a key that comes later."""
    if j + _AHEAD < count:
        prefetch_word(places[j + _AHEAD])
        prefetch_word(places[j + _AHEAD] + _NEXT)


_SEGMENTS = (read(np.int64), read(np.int64), read(np.uint64), INT64)


@FUNCTIONS.kernel(lambda dtype: (read(dtype), *_SEGMENTS, changed(dtype)))
def find_keys(keys, addresses, sizes, secret, shift_bits, out):  # type: ignore[no-untyped-def]
    """Find the value of each ``keys[i]``, or -1, into ``out[i]``."""
    shift = np.uint64(shift_bits)
    hashes = _hashes()
    places, ends = _places(), _places()
    for start in range(0, keys.size, TILE):
        count = np.uint64(min(TILE, keys.size - start))
        hash_tile(keys, start, count, secret, hashes)
        _locate_tile(hashes, count, addresses, sizes, shift, places, ends)
        for j in range(count):
            _prefetch_ahead(places, j, count)
            key, at, end = keys[np.uint64(start) + j], places[j], ends[j]
            value = load_word(at + 8)
            while value != 0 and load_word(at) != key:
                at += _ENTRY
                if at == end:
                    at -= _ENTRY * sizes[segment_of(hashes[j], shift)]
                value = load_word(at + 8)
            out[np.uint64(start) + j] = value - 1


@FUNCTIONS.kernel(lambda dtype: (read(dtype), read(np.uint64), INT64, changed(dtype)))
def count_segments(keys, secret, shift_bits, counts):  # type: ignore[no-untyped-def]
    """Add to ``counts[s]`` the number of keys that belong to segment ``s``."""
    shift = np.uint64(shift_bits)
    hashes = _hashes()
    for start in range(0, keys.size, TILE):
        count = np.uint64(min(TILE, keys.size - start))
        hash_tile(keys, start, count, secret, hashes)
        for j in range(count):
            counts[np.uint64(segment_of(hashes[j], shift))] += 1


@FUNCTIONS.kernel(lambda dtype: (read(dtype), read(dtype), *_SEGMENTS, changed(dtype)))
def insert_keys(keys, values, addresses, sizes, secret, shift_bits, counts):  # type: ignore[no-untyped-def]
    """Write each key with its value; a key that is there gets the new value.

    ``counts[s]`` grows by the new keys of segment ``s``, which has room for them.
    """
    shift = np.uint64(shift_bits)
    hashes = _hashes()
    places, ends = _places(), _places()
    for start in range(0, keys.size, TILE):
        count = np.uint64(min(TILE, keys.size - start))
        hash_tile(keys, start, count, secret, hashes)
        _locate_tile(hashes, count, addresses, sizes, shift, places, ends)
        for j in range(count):
            _prefetch_ahead(places, j, count)
            key, at, end = keys[np.uint64(start) + j], places[j], ends[j]
            segment = segment_of(hashes[j], shift)
            value = load_word(at + 8)
            while value != 0 and load_word(at) != key:
                at += _ENTRY
                if at == end:
                    at -= _ENTRY * sizes[segment]
                value = load_word(at + 8)
            if value == 0:
                store_word(at, key)
                counts[segment] += 1
            store_word(at + 8, values[np.uint64(start) + j] + 1)


@FUNCTIONS.kernel(lambda dtype: (read(dtype), *_SEGMENTS, changed(dtype), changed(dtype)))
def remove_keys(keys, addresses, sizes, secret, shift_bits, counts, out):  # type: ignore[no-untyped-def]
    """Remove keys; ``out[i]``: the value that ``keys[i]`` had, or -1.

    Entries behind a removed one move up, unless that would bring them before their home: no marks
    of removed keys are left, and searches stay short.
    """
    shift = np.uint64(shift_bits)
    k0, k1 = secret[0], secret[1]
    hashes = _hashes()
    places, ends = _places(), _places()
    for start in range(0, keys.size, TILE):
        count = np.uint64(min(TILE, keys.size - start))
        hash_tile(keys, start, count, secret, hashes)
        _locate_tile(hashes, count, addresses, sizes, shift, places, ends)
        for j in range(count):
            _prefetch_ahead(places, j, count)
            key, at, end = keys[np.uint64(start) + j], places[j], ends[j]
            segment = segment_of(hashes[j], shift)
            size, first = sizes[segment], addresses[segment]
            value = load_word(at + 8)
            while value != 0 and load_word(at) != key:
                at += _ENTRY
                if at == end:
                    at = first
                value = load_word(at + 8)
            out[np.uint64(start) + j] = value - 1
            if value == 0:
                continue
            counts[segment] -= 1
            hole, following = at, at
            while True:
                following += _ENTRY
                if following == end:
                    following = first
                other = load_word(following + 8)
                if other == 0:
                    break
                other_key = load_word(following)
                home = _home(_hash(other_key, k0, k1), size)
                place = (following - first) // _ENTRY
                from_home = place - home
                if from_home < 0:
                    from_home += size
                from_hole = place - (hole - first) // _ENTRY
                if from_hole < 0:
                    from_hole += size
                if from_home >= from_hole:
                    store_word(hole, other_key)
                    store_word(hole + 8, other)
                    hole = following
            store_word(hole, 0)
            store_word(hole + 8, 0)


@FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), read(dtype), read(dtype), read(dtype), read(np.uint64), changed(dtype),
    )
)  # fmt: skip
def move_entries(old, old_sizes, new, new_sizes, secret, work):  # type: ignore[no-untyped-def]
    """Write the entries of segments at addresses ``old`` anew at ``new``, where there is more room.

    The two may be the same memory. ``work``: room for the largest of the old segments.
    """
    k0, k1 = secret[0], secret[1]
    hashes = _hashes()
    for s in range(old.size):
        count = 0
        for i in range(old_sizes[s]):
            at = old[s] + _ENTRY * i
            word = load_word(at + 8)
            work[2 * count] = load_word(at)
            work[2 * count + 1] = word
            count += int(word != 0)
            store_word(at, 0)
            store_word(at + 8, 0)
        size, first = new_sizes[s], new[s]
        end = first + _ENTRY * size
        # Reading a fresh page and then writing to it would cost two page faults.
        fresh = first + _ENTRY * old_sizes[s] if new[s] == old[s] else first
        for at in range(fresh, end, _PAGE):
            store_word(at, 0)
        for start in range(0, count, TILE):
            stop = min(start + TILE, count)
            for i in range(start, stop):
                hashes[i - start] = _hash(work[2 * i], k0, k1)
            for i in range(start, stop):
                at = first + _ENTRY * _home(hashes[i - start], size)
                while load_word(at + 8) != 0:
                    at += _ENTRY
                    if at == end:
                        at = first
                store_word(at, work[2 * i])
                store_word(at + 8, work[2 * i + 1])


# -- Kernels on the keys of a step's tables: which are distinct, and which ps has each ---------
# ``distinct.py`` checks their arguments, and says the same in array operations.

_U2, _U33 = np.uint64(2), np.uint64(33)
_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
_LANES = np.uint64(4)
_following = stack_array(4 * MOST_PS, np.int64)
_M0, _M1 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


@inlined
def _ps_of(key, num_ps):  # type: ignore[no-untyped-def]
    word = np.uint64(key)
    word ^= word >> _U33
    word *= _M0
    word ^= word >> _U33
    word *= _M1
    word ^= word >> _U33
    return np.int64(((word >> _U32) * num_ps) >> _U32)


@FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), read(dtype), INT64, INT64, INT64, changed(_INT16), changed(_INT32),
        changed(dtype),
    )
)  # fmt: skip
def divide_keys(keys, tables, num_ps, first, last, parts, places, starts):  # type: ignore[no-untyped-def]
    """Divide keys by ps: ``places`` lists where each table's keys of the first ps are, of the
    second and so on, in order.

    Of the tables from ``first`` to before ``last``; the keys of table ``t`` begin at ``tables[t]``.
    ``parts``: room to work in, at least one for each key. ``starts``: where the places of each part
    begin, those of table ``t`` from ``starts[t * num_ps]`` on.
    """
    of_lane = np.uint64(num_ps)
    following = _following()
    for table in range(first, last):
        begin, end = tables[table], tables[table + 1]
        low, share, high = np.uint64(begin), np.uint64((end - begin) // 4), np.uint64(end)
        rest, last_lane = low + _LANES * share, (_LANES - _U1) * of_lane
        for i in range(low, high):  # by itself: the compiler makes vectors of it
            parts[i] = _ps_of(keys[i], of_lane)
        # Four quarters of the keys by turns: a count waits for the one before it. Numbers without
        # sign need no look at whether they count from the end.
        following[: 4 * num_ps] = 0
        for i in range(share):
            for lane in range(_LANES):
                following[lane * of_lane + np.uint64(parts[low + lane * share + i])] += 1
        for i in range(rest, high):
            following[last_lane + np.uint64(parts[i])] += 1
        at = begin
        for part in range(num_ps):
            starts[table * num_ps + part] = at
            for lane in range(_LANES):
                slot = lane * of_lane + np.uint64(part)
                count = following[slot]
                following[slot] = at
                at += count
        for i in range(share):
            for lane in range(_LANES):
                key = low + lane * share + i
                slot = lane * of_lane + np.uint64(parts[key])
                at = following[slot]
                following[slot] = at + 1
                places[np.uint64(at)] = key
        for i in range(rest, high):
            slot = last_lane + np.uint64(parts[i])
            at = following[slot]
            following[slot] = at + 1
            places[np.uint64(at)] = i


@FUNCTIONS.kernel(
    lambda dtype: (
        read(dtype), read(_INT32), read(dtype), INT64, INT64, read(np.uint64), changed(_INT32),
        changed(dtype), changed(dtype), changed(dtype),
    )
)  # fmt: skip
def distinct_keys(keys, places, starts, first, last, secret, table, unique, inverse, counts):  # type: ignore[no-untyped-def]
    """Give each distinct key of the parts ``first`` to ``last - 1`` a number, in each from zero.

    Those of part ``p``, whose places begin at ``starts[p]``, are ``unique[starts[p] :]`` in the
    order in which they first stand, and ``counts[p]`` of them; ``inverse``: the number of each key.
    ``table``: room to work in, four for each of these keys.
    """
    tile, hashes = _places(), _hashes()
    for part in range(first, last):
        begin, end = np.uint64(starts[part]), np.uint64(starts[part + 1])
        size, shift = _U1, np.uint64(63)
        while size < _U2 * (end - begin):
            size *= _U2
            shift -= _U1
        table[:size] = 0
        place = begin
        for start in range(begin, end, np.uint64(TILE)):
            count = min(np.uint64(TILE), end - start)
            for j in range(count):
                tile[j] = keys[np.uint64(places[start + j])]
            hash_tile(tile, 0, count, secret, hashes)
            for j in range(count):
                prefetch(table, segment_of(hashes[j], shift))
            for j in range(count):
                key, at = tile[j], np.uint64(segment_of(hashes[j], shift))
                number = table[at]
                while number != 0 and unique[begin + np.uint64(number) - _U1] != key:
                    at = (at + _U1) & (size - _U1)
                    number = table[at]
                if number == 0:
                    unique[place] = key
                    place += _U1
                    number = np.int32(place - begin)
                    table[at] = number
                inverse[np.uint64(places[start + j])] = number - 1
        counts[part] = place - begin


@FUNCTIONS.kernel(
    lambda dtype: (
        read(_INT32), read(dtype), INT64, INT64, INT64, read(dtype), changed(dtype), changed(dtype),
    )
)  # fmt: skip
def join_keys(places, starts, num_ps, first, last, counts, unique, inverse):  # type: ignore[no-untyped-def]
    """Put the distinct keys of all parts of a table side by side, and number them through.

    Of the tables from ``first`` to before ``last``. ``counts``: how many each part has.
    """
    for table in range(first, last):
        offset = 0
        for part in range(table * num_ps, (table + 1) * num_ps):
            if offset > 0:
                begin, to = np.uint64(starts[part]), np.uint64(starts[table * num_ps] + offset)
                for i in range(np.uint64(counts[part])):
                    unique[to + i] = unique[begin + i]
                for i in range(begin, np.uint64(starts[part + 1])):
                    inverse[np.uint64(places[i])] += offset
            offset += counts[part]
