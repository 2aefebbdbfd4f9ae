"""Stacks of threads: where each is, what it waits for, whether it moves, and what holds it up."""

import linecache
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import FrameType
from typing import Any

from ...core.process.threads import thread_frames
from ...core.process.waiting import waits_now

_BETWEEN_S = 0.1  # two looks: a thread that is at the same instruction stands still
_MOST_THREADS = 200
_MOST_CALLS = 64
_MOST_CHARACTERS = 120
_MOST_INSIDE = 3  # calls inside Ropewalk that are shown in a row
_ASKING = ("ask-", "question-", "watch-", "leaders")  # threads that ask peers all the time, or now


@dataclass(frozen=True, slots=True)
class StackCall:
    """A call on a stack: ``text`` is the line of the source."""

    file: str
    line: int
    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of a thread.

    Attributes:
        name: Name of the thread.
        calls: Calls, the innermost first.
        stands: Whether it was at the same instruction a moment later.
        waits_for: Name of whom or what it says it waits for; empty: it does not say.
        since_s: Time that it has waited for that. Unit: seconds.
        peer: The peer of the innermost connection on its stack; empty: none.
    """

    name: str
    calls: tuple[StackCall, ...]
    stands: bool = False
    waits_for: str = ""
    since_s: float = 0.0
    peer: str = ""


# -- The stacks of this process ----------------------------------------------------------------


def own_stacks() -> list[ThreadStack]:
    """Take the stacks of all threads of this process but the one that asks. Takes a moment."""
    before = {ident: _position(frame) for ident, frame in thread_frames().items()}
    time.sleep(_BETWEEN_S)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    waits, now, own = waits_now(), time.time(), threading.get_ident()
    stacks = list[ThreadStack]()
    for ident, frame in list(thread_frames().items())[: _MOST_THREADS + 1]:
        if ident == own:
            continue
        whom, since = waits.get(ident, ("", now))
        stacks.append(
            ThreadStack(
                names.get(ident, f"thread {ident:#x}"),
                tuple(_calls(frame)),
                stands=before.get(ident) == _position(frame),
                waits_for=whom,
                since_s=round(now - since, 1),
                peer=_peer(frame),
            )
        )
    return sorted(stacks, key=lambda each: each.name != "MainThread")


def _chain(frame: FrameType | None) -> Iterable[FrameType]:
    count = 0
    while frame is not None and count < _MOST_CALLS:
        yield frame
        frame, count = frame.f_back, count + 1


def _position(frame: FrameType) -> tuple[tuple[int, int], ...]:
    return tuple((id(each), each.f_lasti) for each in _chain(frame))


def _calls(frame: FrameType) -> Iterable[StackCall]:
    for each in _chain(frame):
        code, line = each.f_code, each.f_lineno or 0
        text = linecache.getline(code.co_filename, line, each.f_globals).strip()
        yield StackCall(code.co_filename, line, code.co_name, text[:_MOST_CHARACTERS])


def _peer(frame: FrameType) -> str:
    """Find the peer of the innermost of our objects that has one."""
    for each in _chain(frame):
        if "/ropewalk/" in each.f_code.co_filename and "self" in each.f_code.co_varnames[:1]:
            owner = each.f_locals.get("self")
            for name in ("peer", "_peer"):
                peer = getattr(owner, "__dict__", {}).get(name)
                if isinstance(peer, str) and peer:
                    return peer[:_MOST_CHARACTERS]
    return ""


# -- Stacks that faulthandler has written for a process that cannot answer ---------------------

_THREAD = re.compile(r"^(?:Thread|Current thread) 0x([0-9a-f]+)(?: \[(.*?)\])?.*:$")
_FILE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


def parse_dump(text: str, names: dict[int, str]) -> list[ThreadStack]:
    """Read what faulthandler has written.

    Args:
        text: Text that it has written.
        names: Names of threads by identifier, as far as they are known.
    """
    stacks = list[ThreadStack]()
    name, calls = "", list[StackCall]()

    def end() -> None:
        if name:
            stacks.append(ThreadStack(name, tuple(calls)))

    for line in text.splitlines():
        if thread := _THREAD.match(line):
            end()
            ident = int(thread[1], 16)
            name, calls = names.get(ident) or thread[2] or f"thread {ident:#x}", []
        elif call := _FILE.match(line):
            file, number = call[1], int(call[2])
            text_of = linecache.getline(file, number).strip()[:_MOST_CHARACTERS]
            calls.append(StackCall(file, number, call[3], text_of))
    end()
    return sorted(stacks, key=lambda each: each.name != "MainThread")


# -- What holds a process up. Pure -------------------------------------------------------------

_LOCK = re.compile(r"^(?:async )?with (?P<with>[\w.\[\]\"']+)\s*:|(?P<call>[\w.\[\]]+)\.acquire\(")


def lock_of(stack: ThreadStack) -> str:
    """Name the lock that a thread stands at, as its source does; empty: at none that is seen."""
    if not stack.stands or not stack.calls or _is_ours(stack.calls[0].file):
        return ""  # queues and events of the library are locks, too, where threads just wait
    lock = _LOCK.search(stack.calls[0].text)
    return (lock["with"] or lock["call"]) if lock else ""


def what_holds_up(stacks: Sequence[ThreadStack]) -> str:
    """Say in a sentence what holds a process up, if its stacks show it; else empty."""
    at = [(stack, lock) for stack in stacks if (lock := lock_of(stack))]
    if len({lock for _, lock in at}) > 1:
        each = "; ".join(f"{stack.name} wants {lock} ({place_of(stack)})" for stack, lock in at)
        return f"threads stand at different locks, and each may hold what another wants: {each}"
    if at:
        return "; ".join(f"{stack.name} stands at {lock} ({place_of(stack)})" for stack, lock in at)
    waiting = [stack for stack in stacks if stack.waits_for]
    main = next((stack for stack in (*waiting, *stacks) if stack.name == "MainThread"), None)
    for stack in waiting if main is None or not main.waits_for else [main]:
        return f"{stack.name} waits for {stack.waits_for} since {stack.since_s:.0f} s"
    if main is not None and main.peer and main.stands:
        return f"MainThread waits for an answer of {main.peer}"
    return ""


def where_it_stands(stacks: Sequence[ThreadStack]) -> str:
    """Say at which line of the program its main thread stands still; empty: at none."""
    for stack in stacks:
        own = [call for call in stack.calls if not _is_ours(call.file)]
        if stack.name == "MainThread" and stack.stands and own:
            text = f": {own[0].text}" if own[0].text else ""
            return f"MainThread stands still at {place_of(stack)}{text}"
    return ""


def place_of(stack: ThreadStack) -> str:
    """Name the innermost call of a stack that is the program's: ``train.py:12 (step)``."""
    own = [each for each in stack.calls if not _is_ours(each.file)]
    call = (own or list(stack.calls) or [StackCall("?", 0, "?")])[0]
    return f"{call.file.rpartition('/')[2]}:{call.line} ({call.name})"


def _is_ours(file: str) -> bool:
    return "/ropewalk/" in file or "/lib/python" in file or file.startswith("<")


# Below these there is nothing of a program: how a process and its threads begin.
_BEGINNINGS = frozenset(
    {"_run_code", "_run_module_code", "run_path", "run_program", "run_task", "_bootstrap", "run"}
)


# -- Stacks as text, and as plain data ---------------------------------------------------------


def as_text(stacks: Sequence[ThreadStack]) -> str:
    """Write stacks for people."""
    lines = list[str]()
    busy = [stack for stack in stacks if not is_idle(stack)]
    for stack in busy:
        about = [f"waits for {stack.waits_for} since {stack.since_s:.0f} s"] * bool(stack.waits_for)
        about += [f"peer {stack.peer}"] * bool(stack.peer)
        about += ["stands still"] * stack.stands
        lines.append(f"  {stack.name}{': ' if about else ''}{', '.join(about)}")
        for ours, calls in groupby(_without_beginning(stack.calls), _is_inside):
            lines += _lines_of([*calls], ours=ours)
    if idle := len(stacks) - len(busy):
        lines.append(f"  ({idle} threads of Ropewalk and of libraries wait for work)")
    return "\n".join(lines)


def _is_inside(call: StackCall) -> bool:
    return _is_ours(call.file)


def _lines_of(calls: Sequence[StackCall], *, ours: bool) -> list[str]:
    """Write calls; of those inside Ropewalk and libraries the innermost ones."""
    shown = calls[:_MOST_INSIDE] if ours else calls
    lines = list[str]()
    for call in shown:
        lines.append(f"    {call.file}:{call.line} in {call.name}")
        lines += [f"      {call.text}"] * bool(call.text)
    more = len(calls) - len(shown)
    return [*lines, *([f"    … {more} more inside Ropewalk and libraries"] * bool(more))]


def is_idle(stack: ThreadStack) -> bool:
    """Return whether a thread runs nothing of the program's, and waits for nobody but for work."""
    if not all(_is_ours(call.file) for call in stack.calls) or stack.waits_for:
        return False
    if stack.name == "MainThread":
        return any(call.name == "run_ps" for call in stack.calls)  # a ps has no program
    return not stack.peer or stack.name.startswith(_ASKING) or _awaits_a_request(stack.calls)


def _awaits_a_request(calls: Sequence[StackCall]) -> bool:
    """Return whether a session of a ps has nothing to do: it receives, and nothing else."""
    serving = next((at for at, call in enumerate(calls) if call.name == "_serve"), 0)
    return bool(serving) and calls[serving - 1].name == "receive"


def _without_beginning(calls: Sequence[StackCall]) -> Sequence[StackCall]:
    """Leave out how a process or thread began, the outermost calls, unless it is there now."""
    for count, call in enumerate(calls):
        if count and call.name in _BEGINNINGS and _is_ours(call.file):
            return calls[:count]
    return calls


def from_json(threads: Any) -> list[ThreadStack]:
    """Read stacks from plain data.

    Raises:
        TypeError: They are something else.
    """
    return [
        ThreadStack(**{**thread, "calls": tuple(StackCall(**call) for call in thread["calls"])})
        for thread in threads
    ]
