"""Spans as Chrome's trace events: tracks whose events nest, flows, and clocks that differ."""

from typing import Any

import pytest

from ropewalk.annexes.traces.chrome import (
    SeenSpan,
    aligned,
    chosen,
    chrome_trace,
    seen_spans,
    unanswered,
)


def span(
    name: str, id_: str, parent: str, start: int, end: int, task: str, kind: str = "internal",
    trace: str = "t", host: str = "a", **fields: Any,
) -> SeenSpan:  # fmt: skip
    return SeenSpan(name, trace, id_, parent, start, end, kind, task, fields, host)


def step(host_of_ps: str = "a", skew: int = 0) -> list[SeenSpan]:
    """A step of a worker with a push to a ps whose clock is ahead."""
    return [
        span("step", "1", "", 1000, 9000, "worker:0"),
        span("push", "2", "1", 2000, 8000, "worker:0"),
        span("push", "3", "1", 2500, 7500, "worker:0", "client", peer="ps:0"),
        span("push", "4", "3", 3000 + skew, 5000 + skew, "ps:0", "server", host=host_of_ps, peer="worker:0"),
        span("apply", "5", "4", 3500 + skew, 4500 + skew, "ps:0", host=host_of_ps),
    ]  # fmt: skip


def test_each_task_is_a_process_and_an_exchange_has_an_arrow_to_the_ps() -> None:
    events = chrome_trace(step())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "worker:0", 2: "ps:0"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(tracks.values()) == ["from worker:0", "steps", "to ps:0"]
    shown = [
        (e["name"], e["ts"], e["dur"], tracks[e["pid"], e["tid"]]) for e in events if e["ph"] == "X"
    ]
    assert shown == [
        ("step", 0, 8, "steps"),
        ("push", 1, 6, "steps"),
        ("push", 1.5, 5, "to ps:0"),
        ("push", 2, 2, "from worker:0"),
        ("apply", 2.5, 1, "from worker:0"),
    ]
    arrows = [(e["ph"], e["id"], e["pid"]) for e in events if e["ph"] in "sf"]
    assert arrows == [("s", "3", 1), ("f", "3", 2)]


def test_a_ps_on_another_machine_is_moved_into_the_exchange_with_its_parts() -> None:
    moved = {each.span: each for each in aligned(step("b", skew=1_000_000))}
    assert (moved["4"].start_ns, moved["4"].end_ns) == (4000, 6000)
    assert (moved["5"].start_ns, moved["5"].end_ns) == (4500, 5500)
    assert moved["3"] == step()[2]


@pytest.mark.parametrize(("host", "skew"), [("a", 1_000_000), ("b", 400)], ids=["here", "inside"])
def test_nothing_else_is_moved(host: str, skew: int) -> None:
    spans = step(host, skew)
    assert aligned(spans) == spans


def test_saves_that_went_on_meanwhile_come_along_and_each_span_once() -> None:
    meanwhile = span("checkpoint", "6", "", 8000, 20000, "chief:0", trace="s")
    of_ps = span("checkpoint", "7", "6", 9000, 10000, "ps:0", "server", trace="s")
    later = span("checkpoint", "8", "", 9500, 20000, "chief:0", trace="l")
    other = span("step", "9", "", 1000, 9000, "worker:1", trace="o")
    every = [*step(), *step(), meanwhile, of_ps, later, other]
    assert chosen(every, ["t"]) == [*step(), meanwhile, of_ps]
    assert chosen(every, ["nothing"]) == []


def test_an_exchange_of_which_the_ps_knows_nothing_is_counted() -> None:
    assert unanswered(step()) == 0
    assert unanswered(step()[:3]) == 1


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"spans": 3},
        {"spans": [["step"]]},
        {"spans": [["a", "b", "c", "d", "x", 2, "e", "f", {}]]},
    ],
    ids=["none", "number", "short", "no time"],
)
def test_an_answer_that_has_no_spans_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="an answer has"):
        seen_spans(answer)
