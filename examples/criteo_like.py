"""Visits that look like those of Criteo's logs: 13 numbers, 26 features of ids, and a click.

They are made up, so nothing is downloaded. Features differ in how many ids they have, from 3 to
300,000 before hashing; a few ids are on most visits; every third feature has several ids, as in
the later logs of MLPerf. An id is a hash of 64 bits. Some features tell more than others: pairs of
them have a hidden reason, and so has the first number.
"""

import numpy as np

NUMBERS = 13
SIZES = {f"C{i + 1}": int(3 * 10 ** (5 * i / 25)) for i in range(26)}  # ids of each feature
PAIRS = (("C8", "C17"), ("C11", "C23"))  # that decide together
KINDS = 300  # ids of a feature fall into so many


def load_clicks(seed, count):
    """(numbers (n, 13), ids by feature (n, 1 to 3), clicks (n,), the probability of each click).

    What is liked is the same for every seed.
    """
    rng, truth = np.random.default_rng(seed), np.random.default_rng(0)
    numbers = rng.normal(size=(count, NUMBERS)).astype(np.float32)
    logits, drawn, ids = 0.5 * numbers[:, 0] - 0.5, {}, {}
    for i, (name, size) in enumerate(SIZES.items()):
        drawn[name] = (rng.zipf(1.4, (count, 1 + i % 3)) - 1) % size
        ids[name] = _hashed(drawn[name] + (i << 40))
        logits += 0.15 * truth.normal(size=KINDS)[drawn[name] % KINDS].mean(axis=1)
    for first, second in PAIRS:
        tastes = (truth.normal(size=(KINDS, 2))[drawn[each] % KINDS] for each in (first, second))
        liked, has = (each.mean(axis=1) for each in tastes)
        logits += 1.5 * (liked * has).sum(axis=1)
    probability = 1 / (1 + np.exp(-logits))
    return numbers, ids, (rng.random(count) < probability).astype(np.float32), probability


def _hashed(numbers):
    """Each number's own int64, far apart from the next one's: the last step of SplitMix64."""
    bits = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))).view(np.int64)
