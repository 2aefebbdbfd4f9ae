"""How long a peer was silent while this process listened."""

from ropewalk.core.clock import Silence


def test_a_silence_is_what_has_passed_since_the_peer_was_heard() -> None:
    silence = Silence(100.0, 5.0)
    assert silence.look(102.0) == 2
    assert silence.look(106.0) == 6
    silence.heard(107.0)
    assert silence.look(108.5) == 1.5


def test_what_passes_while_a_machine_is_suspended_counts_as_one_look() -> None:
    silence = Silence(100.0, 5.0)
    assert silence.look(101.0) == 1
    assert silence.look(4000.0) == 6
    assert silence.look(4001.0) == 7
