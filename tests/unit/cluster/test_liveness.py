"""Whether a silent peer is lost: limits that follow from its heartbeats, and evidence."""

import itertools
import json
from pathlib import Path

import pytest

from ropewalk.cluster.liveness import (
    Evidence,
    Judgement,
    Rhythm,
    answer_s,
    is_to_be_asked,
    judge,
)

SHORTEST_S, LONGEST_S = 1.0, 10.0
RECORDED = Path(__file__).with_name("heartbeats.json")  # milliseconds, by kind and peer
GONE = [each for each in Evidence if each.says_gone]


def limit_after(*intervals: float) -> float:
    rhythm, now = Rhythm(), 0.0
    for interval in (0.0, *intervals):
        now += interval
        rhythm.heard(now)
    return rhythm.limit_s(SHORTEST_S, LONGEST_S)


@pytest.mark.parametrize(
    ("intervals", "limit_s"),
    [
        pytest.param([], LONGEST_S, id="nothing is known yet"),
        pytest.param([0.1] * 4, LONGEST_S, id="too little is known"),
        pytest.param([0.1] * 5, SHORTEST_S, id="never below the least"),
        pytest.param([0.5] * 20, 1.0, id="an idle machine"),
        pytest.param([0.5] * 20 + [0.9], 1.8, id="a delay counts at once"),
        pytest.param([2.0] + [0.5] * 99, 4.0, id="and for the next hundred"),
        pytest.param([2.0] + [0.5] * 100, 1.0, id="and no longer"),
        pytest.param([0.5] * 20 + [60.0], 2.0, id="one doubles the limit at most"),
        pytest.param([0.5] * 20 + [7.0] * 9, LONGEST_S, id="never above the greatest"),
        pytest.param([0.5, 0.5, 0.5, -3.0, 0.5], 1.0, id="a clock that goes back"),
    ],
)
def test_the_limit_is_twice_the_longest_of_the_last_intervals_within_bounds(
    intervals: list[float], limit_s: float
) -> None:
    assert limit_after(*intervals) == pytest.approx(limit_s)


def test_a_time_in_which_nobody_listened_is_no_interval() -> None:
    rhythm = Rhythm()
    for beat in range(6):
        rhythm.heard(beat / 2)
    rhythm.skip(3600, 3602.5)
    rhythm.heard(3603)
    assert rhythm.limit_s(SHORTEST_S, LONGEST_S) == pytest.approx(1.0)


TIMES = [0.0, 0.9, 1.0, 1.1, 3.9, 4.1, 10.0, 10.1, 300.0, 300.1]


@pytest.mark.parametrize("evidence", Evidence)
@pytest.mark.parametrize("late_s", [0.0, 300.0])
@pytest.mark.parametrize("limit_s", [1.0, 4.0, 10.0, 20.0])
def test_a_verdict_is_what_evidence_and_silence_say(
    evidence: Evidence, late_s: float, limit_s: float
) -> None:
    verdicts = [
        judge(silent_s, evidence, limit_s=limit_s, lease_s=LONGEST_S, late_s=late_s)
        for silent_s in TIMES
    ]
    for silent_s, verdict in zip(TIMES, verdicts, strict=True):
        gone_after_s = min(limit_s, LONGEST_S) if evidence in GONE else LONGEST_S
        if silent_s <= gone_after_s:
            assert verdict is Judgement.WELL
        elif evidence is Evidence.THERE and silent_s <= late_s:
            assert verdict is Judgement.LATE
        else:
            assert verdict is Judgement.LOST
    order = [Judgement.WELL, Judgement.LATE, Judgement.LOST]
    ranks = [order.index(verdict) for verdict in verdicts]
    assert ranks == sorted(ranks)  # silence that goes on makes nothing better


@pytest.mark.parametrize("beat_s", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("evidence", GONE)
def test_a_peer_that_is_gone_is_found_within_three_heartbeats_on_an_idle_machine(
    beat_s: float, evidence: Evidence
) -> None:
    """With two looks in a heartbeat, wherever they fall: 1.5 s by default."""
    for phase in (0.01, 0.1, 0.2, 0.3, 0.4):
        rhythm = Rhythm()
        beats = [beat_s * number for number in range(20)]
        for beat in beats:
            rhythm.heard(beat)
        limit_s = rhythm.limit_s(2 * beat_s, 20 * beat_s)
        asked: float | None = None
        for look in itertools.count():
            now = beats[-1] + (phase + look / 2) * beat_s
            silent_s = now - beats[-1]
            if is_to_be_asked(silent_s, limit_s) and asked is None:
                asked = now
            known = evidence
            if evidence is Evidence.UNANSWERED:
                is_late = asked is not None and now - asked >= answer_s(limit_s)
                known = Evidence.UNANSWERED if is_late else Evidence.THERE
            verdict = judge(
                silent_s, known, limit_s=limit_s, lease_s=20 * beat_s, late_s=600 * beat_s
            )
            if verdict is Judgement.LOST:
                break
        assert silent_s <= 3 * beat_s


def recorded() -> list[tuple[str, list[float]]]:
    return [
        (f"{name} {index}", [interval / 1000 for interval in intervals])
        for name, peers in json.loads(RECORDED.read_text()).items()
        for index, intervals in enumerate(peers)
    ]


@pytest.mark.parametrize("intervals", [pytest.param(each, id=name) for name, each in recorded()])
def test_recorded_heartbeats_of_a_busy_machine_exceed_no_limit(intervals: list[float]) -> None:
    """Of workers that compute beside others on two cores, also where it was idle before: nobody
    would be lost even if every connection broke in each interval.
    """
    rhythm, now = Rhythm(), 0.0
    for interval in [0.5] * 60 + intervals:
        limit_s = rhythm.limit_s(SHORTEST_S, LONGEST_S)
        verdict = judge(interval, Evidence.ENDED, limit_s=limit_s, lease_s=LONGEST_S, late_s=300.0)
        assert verdict is Judgement.WELL, (interval, limit_s)
        now += interval
        rhythm.heard(now)
    assert rhythm.limit_s(SHORTEST_S, LONGEST_S) < 2.5  # and who is gone is found soon
