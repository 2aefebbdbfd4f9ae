"""Frames of threads are read while garbage waits to be collected."""

import gc
import subprocess
import sys
import threading
from types import FrameType

import pytest

from helpers.waiting import scaled
from ropewalk.core.process.threads import main_thread_frame, thread_frames

# A collection is due with the first, second, … object that is made while frames are read, and frees
# a threading.local in a cycle. The frames of the other threads are new each time.
DUE_WHILE_READING = """
import gc, threading, time
from ropewalk.core.process.threads import thread_frames

class Cycle: ...

def wait():
    while True:
        threading.Event().wait(0.001)

for _ in range(4):
    threading.Thread(target=wait, daemon=True).start()
gc.collect()
for due in range(200):
    time.sleep(0.003)
    gc.disable()
    gc.set_threshold(100_000)
    for _ in range(3):
        cycle = Cycle()
        cycle.itself, cycle.local = cycle, threading.local()
        cycle.local.value = 1
        del cycle
    gc.set_threshold(gc.get_count()[0] + due % 8)
    gc.enable()
    thread_frames()
print("read")
"""


def test_a_collection_that_is_due_waits_until_frames_are_read() -> None:
    command = [sys.executable, "-c", DUE_WHILE_READING]
    assert subprocess.check_output(command, text=True, timeout=scaled(30)) == "read\n"


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_afterwards_if_it_was_before(*, collects: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        frames = thread_frames()
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
    assert frames[threading.get_ident()].f_code.co_name == "thread_frames"


def test_the_main_thread_is_found_from_another_one() -> None:
    found: list[FrameType | None] = []
    thread = threading.Thread(target=lambda: found.append(main_thread_frame()))
    thread.start()
    thread.join()
    [frame] = found
    while frame is not None and frame is not sys._getframe():
        frame = frame.f_back
    assert frame is not None
