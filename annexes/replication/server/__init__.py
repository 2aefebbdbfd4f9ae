"""A store that other ps follow, record by record (ADR 0054).

``records`` says what happens to a store, ``stream`` hands it to followers in order and waits for
their acknowledgements, ``copying`` brings a new follower what was there before, and ``replaying``
does the same to a follower's store.
"""
