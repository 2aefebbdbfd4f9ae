"""Stacks: where threads are, what they wait for, and the sentence that says what holds them up."""

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from helpers.waiting import wait_until
from ropewalk.annexes.diagnosis.stacks import (
    StackCall,
    ThreadStack,
    as_text,
    from_json,
    own_stacks,
    parse_dump,
    place_of,
    what_holds_up,
    where_it_stands,
)
from ropewalk.core.process.waiting import WaitLog


def _at(
    name: str, text: str, *, stands: bool = True, file: str = "/home/me/train.py"
) -> ThreadStack:
    return ThreadStack(
        name, (StackCall(file, 7, "step", text), StackCall(file, 20, "main")), stands=stands
    )


# -- what holds a process up -----------------------------------------------------------------


def test_two_threads_at_different_locks_are_named_with_their_places() -> None:
    said = what_holds_up([_at("MainThread", "with second:"), _at("replica-1", "self.a.acquire()")])
    assert said == (
        "threads stand at different locks, and each may hold what another wants: MainThread wants "
        "second (train.py:7 (step)); replica-1 wants self.a (train.py:7 (step))"
    )


def test_one_lock_is_named_without_a_guess() -> None:
    said = what_holds_up([_at("MainThread", "with lock:"), _at("loader", "x = 1")])
    assert said == "MainThread stands at lock (train.py:7 (step))"


@pytest.mark.parametrize(
    "stack",
    [
        _at("MainThread", "with lock:", stands=False),
        _at("MainThread", "with open(path) as file:"),
        _at("pool", "waiter.acquire()", file="/usr/lib/python3.12/threading.py"),
        ThreadStack("empty", (), stands=True),
    ],
    ids=["moves", "no lock", "waits for work", "no calls"],
)
def test_a_thread_that_moves_or_waits_for_work_is_not_blamed(stack: ThreadStack) -> None:
    assert what_holds_up([stack]) == ""


def test_a_wait_that_says_for_whom_is_the_reason() -> None:
    waits = ThreadStack("MainThread", (), waits_for="worker:1 to finish", since_s=12.4)
    other = ThreadStack("join", (), waits_for="ps:0", since_s=2)
    assert what_holds_up([other, waits]) == "MainThread waits for worker:1 to finish since 12 s"
    assert what_holds_up([other]) == "join waits for ps:0 since 2 s"


def test_a_step_that_is_not_answered_names_the_peer() -> None:
    step = ThreadStack("MainThread", (), stands=True, peer="ps:0 (10.0.0.1:2222)")
    assert what_holds_up([step]) == "MainThread waits for an answer of ps:0 (10.0.0.1:2222)"


def test_the_place_is_the_innermost_call_of_the_program() -> None:
    calls = [
        StackCall(f"/x/{file}", 3, "f") for file in ("ropewalk/net/a.py", "lib/python3.12/b.py")
    ]
    assert (
        place_of(ThreadStack("t", (*calls, StackCall("/me/train.py", 9, "go"))))
        == "train.py:9 (go)"
    )
    assert place_of(ThreadStack("t", ())) == "?:0 (?)"


def test_a_main_thread_that_stands_still_is_named_with_its_line_where_nothing_else_is() -> None:
    stack = _at("MainThread", "answer = input('go on? ')")
    assert what_holds_up([stack]) == ""
    assert where_it_stands([_at("loader", "f()"), stack]) == (
        "MainThread stands still at train.py:7 (step): answer = input('go on? ')"
    )
    assert where_it_stands([_at("MainThread", "f()", stands=False)]) == ""


# -- the stacks of this process --------------------------------------------------------------


@pytest.fixture
def two_locks() -> Iterator[threading.Event]:
    """Two threads, each of which has a lock that the other one wants."""
    first, second, free = threading.Lock(), threading.Lock(), threading.Event()
    both = threading.Barrier(2)

    def take(own: threading.Lock, other: threading.Lock) -> None:
        with own:
            both.wait()
            while not free.is_set():
                if other.acquire(timeout=2):
                    other.release()
                    return

    threads = [
        threading.Thread(target=take, args=pair, name=f"replica-{index}", daemon=True)
        for index, pair in enumerate([(first, second), (second, first)])
    ]
    for thread in threads:
        thread.start()
    yield free
    free.set()
    for thread in threads:
        thread.join(10)


def test_a_deadlock_of_two_threads_is_found_in_this_process(two_locks: threading.Event) -> None:
    seen = list[ThreadStack]()

    def is_found() -> bool:
        seen[:] = [stack for stack in own_stacks() if stack.name.startswith("replica-")]
        return what_holds_up(seen).count("replica-") == 2

    wait_until(is_found, 10, "threads that stand at locks")
    assert seen[0].calls[0].text == "if other.acquire(timeout=2):"


def test_a_wait_is_told_with_its_thread_and_is_forgotten_with_it() -> None:
    over = threading.Event()

    def wait() -> None:
        waits = WaitLog("worker:0")
        waits.tick("the chief at 10.0.0.1:2222")
        over.wait(30)

    thread = threading.Thread(target=wait, name="waiter")
    thread.start()
    time.sleep(0.05)
    [stack] = [stack for stack in own_stacks() if stack.name == "waiter"]
    over.set()
    thread.join(10)
    assert stack.waits_for == "the chief at 10.0.0.1:2222"
    assert 0 <= stack.since_s < 20
    assert all(stack.waits_for != "the chief at 10.0.0.1:2222" for stack in own_stacks())


def test_stacks_survive_the_trip_as_plain_data() -> None:
    stacks = own_stacks()
    assert from_json([asdict(stack) for stack in stacks]) == stacks


def test_idle_threads_are_counted_and_not_shown() -> None:
    idle = _at("pool", "waiter.acquire()", file="/usr/lib/python3.12/threading.py")
    text = as_text([_at("MainThread", "with lock:"), idle])
    assert "MainThread: stands still" in text
    assert "with lock:" in text
    assert "pool" not in text
    assert text.endswith("(1 threads of Ropewalk and of libraries wait for work)")


# -- what faulthandler writes ----------------------------------------------------------------

DUMP = """Thread 0x00007f3a (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 331 in wait

Current thread 0x00007f3b [python3] (most recent call first):
  File "/home/me/train.py", line 8 in spin
  File "/home/me/train.py", line 11 in <module>
"""


def test_a_dump_is_read_with_the_names_that_are_known() -> None:
    main, other = parse_dump(DUMP, {0x7F3B: "MainThread"})
    assert (main.name, other.name) == ("MainThread", "thread 0x7f3a")
    assert [(call.line, call.name) for call in main.calls] == [(8, "spin"), (11, "<module>")]


@pytest.mark.parametrize("text", ["", "garbage\n", '  File "a", line 1 in b\n', "Thread 0x:\n"])
def test_what_is_no_dump_has_no_stacks(text: str) -> None:
    assert parse_dump(text, {}) == []


def _inside(*names: str) -> tuple[StackCall, ...]:
    return tuple(StackCall(f"/x/ropewalk/net/{name}.py", 3, name) for name in names)


@pytest.mark.parametrize(
    ("stack", "idle"),
    [
        (ThreadStack("session", _inside("receive", "_serve", "serve"), peer="worker:1"), True),
        (ThreadStack("session", _inside("run", "push", "_serve"), peer="worker:1"), False),
        (ThreadStack("ask-ps:0", _inside("_blocking", "ask"), peer="ps:0"), True),
        (ThreadStack("save_0", _inside("_blocking", "save_shards"), peer="ps:0"), False),
        (ThreadStack("MainThread", _inside("wait", "run_ps")), True),
        (ThreadStack("MainThread", _inside("wait", "leave")), False),
        (ThreadStack("pool", _inside("wait"), waits_for="ps:0"), False),
    ],
    ids=["a session without a step", "a session in a step", "asks", "saves", "a ps", "leaves",
         "waits"],
)  # fmt: skip
def test_a_thread_of_the_library_is_shown_while_it_does_something(
    stack: ThreadStack, idle: bool
) -> None:
    assert as_text([stack]).startswith("  (1 threads") is idle


def test_of_calls_inside_the_library_the_innermost_ones_are_shown() -> None:
    program = StackCall("/me/train.py", 9, "go", "strategy.run(step)")
    stack = ThreadStack("MainThread", (*_inside(*"abcdefg"), program), peer="ps:0")
    lines = [line.strip() for line in as_text([stack]).splitlines()]
    assert lines == [
        "MainThread: peer ps:0",
        *(f"/x/ropewalk/net/{name}.py:3 in {name}" for name in "abc"),
        "… 4 more inside Ropewalk and libraries",
        "/me/train.py:9 in go",
        "strategy.run(step)",
    ]
