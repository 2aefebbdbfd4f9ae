"""Process exit codes: a contract with what restarts processes.

Kubeflow's ``restartPolicy: ExitCode``, an Indexed Job's ``podFailurePolicy`` and our own launcher
read them the same way: 0 is done, 1–127 is permanent (a restart would fail again), 128 and above
is worth a restart. ``docs/exit-codes.md`` is the list for users; a test keeps the two equal.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a Ropewalk process ended."""

    DONE = 0
    PROGRAM_FAILED = 1
    USAGE = 2
    ADDRESS_IN_USE = 3
    CHECKPOINT_UNUSABLE = 4
    INCOMPATIBLE = 5
    REFUSED = 6
    STORAGE = 7
    ACCESS = 8
    NOT_FOUND = 9
    JOB_FAILED = 10
    KILLED = 137
    PEER_LOST = 138
    JOIN_TIMEOUT = 140
    DRAINED = 143
    LEFT_EARLY = 144

    @property
    def meaning(self) -> str:
        """Sentence for people."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "the task's work is complete",
    ExitCode.PROGRAM_FAILED: "the user's program raised an exception",
    ExitCode.USAGE: "wrong usage or configuration: flags, TF_CONFIG, a script that does not exist, "
    "or how a program uses Ropewalk",
    ExitCode.ADDRESS_IN_USE: "the task's port is taken by another process",
    ExitCode.CHECKPOINT_UNUSABLE: "the checkpoint is truncated, altered or not ours",
    ExitCode.INCOMPATIBLE: "tasks disagree: definitions of variables, collective calls, "
    "versions, jobs",
    ExitCode.REFUSED: "a step was refused: wrong shapes, over a limit, or not finite too often; "
    "or a worker too many; or a damaged package",
    ExitCode.STORAGE: "model_dir or a cache cannot be written: no permission, no space, or not a "
    "folder",
    ExitCode.ACCESS: "credentials are missing, expired or not those of this job, or the role may "
    "not",
    ExitCode.NOT_FOUND: "a job or a namespace that a command names does not exist",
    ExitCode.JOB_FAILED: "another task has failed for good, and with it the job",
    ExitCode.KILLED: "killed by SIGKILL (out of memory, or a launcher's last resort)",
    ExitCode.PEER_LOST: "a peer this task needs was lost, or the job failed elsewhere",
    ExitCode.JOIN_TIMEOUT: "peers did not answer within the join timeout",
    ExitCode.DRAINED: "asked to stop (SIGTERM, Ctrl-C) before the work was complete",
    ExitCode.LEFT_EARLY: "a ps left before its chief let it go: it was asked to stop and nobody "
    "took over in time what it had, or it had no chief for orphan_timeout_s",
}


def is_retryable(code: int) -> bool:
    """Return whether a restart may succeed: 128 and above, or death by a signal (negative, as
    subprocess).
    """
    return code >= 128 or code < 0


def describe_exit(code: int) -> str:
    """Describe an exit status as ``subprocess`` reports it (negative: a signal), in a sentence."""
    import signal

    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    try:
        return ExitCode(code).meaning
    except ValueError:
        return "exited by itself with a code that is not Ropewalk's"


def shell_status(code: int) -> int:
    """Convert an exit status to what a shell would show: death by signal n is 128 + n."""
    return 128 - code if code < 0 else code
