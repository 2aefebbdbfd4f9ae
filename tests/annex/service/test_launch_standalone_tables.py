"""Tables of jobs and nodes, in which others have written."""

import io

from ropewalk.annexes.service.calls import JobView, NodeView
from ropewalk.annexes.service.chief_of_job import jobs_table, nodes_table
from ropewalk.core.task import TaskId
from ropewalk.launch.screen.display import TerminalConsole


def test_what_others_have_written_is_shown_and_not_obeyed() -> None:
    stopped = JobView(
        "j", "n", "ended", "[/x] \x1b[2J", 0, 0.0, 0.0, 0.0, {}, {}, {}, "[red]me", (), ""
    )
    node = NodeView(TaskId("worker", 0), "[/host]\x07", is_lost=False, running=0)
    shown = io.StringIO()
    console = TerminalConsole(file=shown, width=120)
    console.print(jobs_table([stopped]))
    console.print(nodes_table([node]))
    for text in ("[/x] ", "[red]me", "[/host]\ufffd"):
        assert text in shown.getvalue()
    assert "\x1b" not in shown.getvalue()
