"""The chief's loop: renew its lease on the ps, have the job saved, end it.

One thread runs the loop, a second one saves (``job_saver.py``), and a third one notices lost tasks
(``loss_watch.py``). The loop keeps no state of its own: it decides by the
:class:`~ropewalk.cluster.job.job.Job` and the clock.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ...client.ps.control import PsAnswer, PsControl
from ...core.errors import (
    FencedError,
    OtherJobError,
    PeerLostError,
    PermissionDeniedError,
    RopewalkError,
    said_of,
)
from ...core.process.events import record
from ...core.process.threads import new_thread
from ...core.process.waiting import WaitLog
from ...core.settings import Settings
from ...core.task import Incarnation, Phase, State, TaskId
from ...net.sockets import is_refused
from ...server.chief.servicer import LockedJob
from .companions import Companions
from .job_saver import JobSaver
from .leadership import ShareLeadership
from .loss_watch import LossWatch

log = logging.getLogger(__name__)

_ATTACH_S = 2.0
_SILENT_BEATS = 3  # heartbeats that a task has not sent
_PORT_S = 0.2  # for a machine to refuse a connection
_LEAST_CALLS = 8  # at once, to all ps: some may come later
# Pods of one job that are deleted together get SIGTERM within two seconds: each kubelet hears of
# it by itself. Behind a busy controller, which deletes the pods of each Job, it takes longer.
_WATCH_S = 3.0
_KNOWN_WATCH_S = 1.0  # two heartbeats: a ps on a node that is drained may be asked to stop, too
_WATCH = 1 / 4  # of leave_grace_s, where tasks train on meanwhile
_LONGEST_WATCH_S = 15.0  # a node that is drained waits for it


class ChiefLoop:
    """Runs one job. Start it once the chief has registered.

    Args:
        locked_job: The job.
        who: The chief.
        address: The chief's address; workers that do not have it ask a ps for it.
        controls: Controls of the ps, one each.
        saver: Saves the job.
        settings: Periods.
        companions: Companions of the job.
        leadership: Says which ps lead.
    """

    def __init__(
        self,
        locked_job: LockedJob,
        who: Incarnation,
        address: str,
        controls: Sequence[PsControl],
        saver: JobSaver,
        settings: Settings,
        companions: Companions,
        leadership: ShareLeadership,
    ) -> None:
        self._locked_job = locked_job
        self._who = who
        self._address = address
        self._controls = list(controls)
        self._saver = saver
        self._settings = settings
        self._leaving = threading.Event()
        self._leadership = leadership
        self._thread = new_thread("chief-loop", self._lead, failed=self._failed)
        self._pool = ThreadPoolExecutor(
            max(_LEAST_CALLS, len(controls), 2 * settings.ps_shares), thread_name_prefix="attach"
        )
        self._draining: list[TaskId] = []  # ps that were asked to stop
        self._refusal: RopewalkError | None = None  # of a ps to be led
        self._warned_of_replicas = False
        self._companions = companions
        self._losses = LossWatch(locked_job, settings, self._controls, self._failed)

    def start(self) -> None:
        """Start the loop's thread, and the one that notices lost tasks."""
        self._thread.start()
        self._losses.start()
        self._companions.start()

    def add(self, control: PsControl) -> None:
        """Renew the lease of a ps, too, that has come after :meth:`start`. From any thread."""
        self._controls.append(control)

    @property
    def failure(self) -> RopewalkError | None:
        """Why the job failed, if that says more than its phase: the chief ends with its code."""
        return self._refusal or self._saver.failure

    def _lead(self) -> None:
        self._attach()
        while not self._leaving.wait(self._settings.heartbeat_s):
            self._turn()

    def _failed(self, error: BaseException) -> None:
        # A silent end would leave the job running without a chief.
        with self._locked_job.open() as (job, _):
            job.fail(f"the chief's loop failed: {said_of(error)}")

    def _turn(self) -> None:
        self._attach()
        with self._locked_job.open() as (job, now):
            self._warn_of_replicas(job.members.uneven_replicas())
            self._companions.look(job, now)
        self._companions.act()
        self._saver.begin_if_due()

    def _warn_of_replicas(self, counts: Mapping[TaskId, int]) -> None:
        if counts and not self._warned_of_replicas:
            self._warned_of_replicas = True
            shown = ", ".join(f"{task}: {count}" for task, count in counts.items())
            log.warning(
                "tasks have different numbers of devices (%s): num_replicas_in_sync differs, and "
                "with it what a program derives from it, such as batches and scaled losses",
                shown,
            )

    def _attach(self, *, is_last: bool = False) -> None:
        with self._locked_job.open() as (job, _):
            lost = job.members.in_state(State.LOST) if is_last else ()
        controls = [control for control in tuple(self._controls) if control.task not in lost]
        answers = list(self._pool.map(partial(self._attach_one, is_last=is_last), controls))
        pairs = list(zip(controls, answers, strict=True))
        self._draining = [c.task for c, a in pairs if isinstance(a, PsAnswer) and a.draining]
        with self._locked_job.open() as (job, now):
            for control, answer in pairs:
                if isinstance(answer, FencedError | OtherJobError | PermissionDeniedError):
                    if not isinstance(answer, FencedError):
                        self._refusal = answer
                    job.ps_refused(control.task, answer.message, now=now)
                elif isinstance(answer, PsAnswer):
                    job.ps_answered(control.task, answer.generation, answer.counters, now=now)
                    if answer.draining and self._leadership.is_stuck(control.task):
                        job.stop(f"{control.task} was asked to stop")

    def _attach_one(self, control: PsControl, *, is_last: bool) -> PsAnswer | RopewalkError:
        leadership = self._leadership
        try:
            return control.attach(
                self._who,
                self._address,
                lease_s=self._settings.lease_s,
                timeout_s=_ATTACH_S,
                may_leave=leadership.may_leave(control.task),
                replicated_process=leadership.replicated_process(control.task),
                is_last=is_last,
            )
        except RopewalkError as error:
            return error

    def hand_over(
        self,
        *,
        global_step: int,
        watch_s: float | None = None,
    ) -> bool:
        """Save, and leave the job to the next chief; the other tasks go on.

        A chief is asked to stop in one way whether it alone is evicted or its whole job ends. So
        this waits a moment, in which the others may be asked, too; then they are told to stop, and
        :meth:`end` is to follow.

        Args:
            global_step: The last global step that the chief's program has seen.
            watch_s: Time that the others are watched; None: where others train on meanwhile for a
                quarter of ``leave_grace_s``, 15 seconds at most; else for three seconds, or for one
                if it is known that another chief follows. Unit: seconds.

        Returns:
            Whether it was left; False: the job stops, or is over.
        """
        clock, saver = self._locked_job.clock, self._saver
        saver.end_periods()
        with self._locked_job.open() as (job, now):
            at_work, trains = job.members.workers_at_work, bool(job.members.waited_for())
        if watch_s is None and trains:
            watch_s = max(_WATCH_S, min(_LONGEST_WATCH_S, _WATCH * self._settings.leave_grace_s))
        elif watch_s is None:
            watch_s = _WATCH_S if self._companions.why_none_follows() is None else _KNOWN_WATCH_S
        until = now + watch_s
        saver.wait()
        with self._locked_job.open() as (job, _):
            step, pushes = max(job.members.global_step, global_step), job.members.pushes
        if step > 0 and saver.has_changed(step, pushes):
            saver.save(step, pushes)
        while not self._stops_with_others(at_work):
            if clock.now() >= until:
                break
            clock.wait(self._leaving, 0.05)
        else:
            return False
        if why := self._companions.why_none_follows():
            with self._locked_job.open() as (job, _):
                job.stop(why)
            return False
        self._leaving.set()
        self._thread.join()
        self._losses.close()
        self._leadership.stop()
        saver.record()
        return True

    def _stops_with_others(self, at_work: Sequence[TaskId]) -> bool:
        """Return whether the job stops, or is over: also if all that were at work have left, or a
        ps is about to, whose shares nobody would give to others.
        """
        leaving = self._draining
        with self._locked_job.open() as (job, _):
            if leaving:
                job.stop(f"{leaving[0]} was asked to stop, too")
            elif at_work and not job.members.workers_at_work:
                job.stop(f"{self._who.task} and all workers were asked to stop")
            return job.phase is not Phase.RUNNING

    def end(
        self,
        *,
        global_step: int,
        on_wait: Callable[[str], None],
        change_last: Callable[[], None] = lambda: None,
        save_first: bool = False,
    ) -> Phase:
        """End the job after the chief's program: wait for the workers, save, tell every task.

        Args:
            global_step: The last global step that the chief's program has seen.
            on_wait: Called with the names of the awaited tasks whenever they change.
            change_last: Called when all others are done, if the job is to complete: changes what
                the last checkpoint has. If it fails, so does the job.
            save_first: Save before waiting: no worker changes the values any more.

        Returns:
            The job's final phase.
        """
        saver = self._saver
        saver.end_periods()
        if save_first and global_step > saver.saved_step:
            saver.save(global_step, 0)
        self._wait_for_workers(on_wait)
        saver.wait()
        self._change_last(change_last)
        self._attach(is_last=True)  # the pushes up to now
        with self._locked_job.open() as (job, _):
            phase, pushes = job.phase, job.members.pushes
            step = max(job.members.global_step, global_step)
            why_not_done = job.why_not_done()
        ps_lost = self._leadership.has_lost_values()
        written = step > 0 or (pushes > 0 and phase is Phase.RUNNING)
        # One that fails before its first step has made variables, maybe another model's: its
        # checkpoint stays the newest.
        no_step = phase is Phase.FAILED and 0 < step <= saver.saved_step
        is_saved = no_step or (save_first and phase is not Phase.RUNNING)
        if written and not ps_lost and not is_saved:
            saved = saver.save(step, pushes, final=phase is Phase.RUNNING and not why_not_done)
            if phase is Phase.RUNNING and not saved:
                with self._locked_job.open() as (job, _):
                    job.fail(f"the last checkpoint could not be written: {saver.failure}")
        self._leaving.set()
        self._thread.join()
        self._losses.close()
        self._attach(is_last=True)  # the last counters, for the status
        with self._locked_job.open() as (job, now):
            if why_not_done:
                job.fail(why_not_done)
            job.complete()
            self._companions.look(job, now, is_last=True)
            phase, reason = job.phase, job.reason
            # The last word, whatever the program ended by.
            record(
                "job.failed" if phase is Phase.FAILED else "job.ended", phase=phase, reason=reason
            )
            if job.has_lost_variables or reason == why_not_done != "":
                log.error("%s", reason)
        self._companions.act()
        saver.record()
        self._leadership.stop()
        self._dismiss(phase, reason)
        return phase

    def _change_last(self, change: Callable[[], None]) -> None:
        with self._locked_job.open() as (job, _):
            completes = job.phase is Phase.RUNNING
        if not completes:
            return
        try:
            change()
        except RopewalkError as error:
            with self._locked_job.open() as (job, _):
                job.fail(f"the program's last values could not be written: {error.message}")

    def _wait_for_workers(self, on_wait: Callable[[str], None]) -> None:
        reported = ""
        deadline: float | None = None
        began = self._locked_job.clock.now()
        waits = WaitLog(
            self._who.task,
            limit=f"a task that is gone is given up within {self._settings.lease_s:g} s",
            clock=self._locked_job.clock,
        )
        while True:
            with self._locked_job.open() as (job, now):
                waiting, phase = job.members.waited_for(), job.phase
                # A short program may end before the last worker has started: give it time to find
                # its peers, but not after the join timeout.
                just_begun = began - job.began < self._settings.join_timeout_s
                if just_begun and now - began < self._settings.leave_grace_s:
                    waiting += job.members.not_registered()
            if not waiting or phase.is_over:
                return
            if phase is Phase.STOPPING:
                # A worker that does not reach its next step is interrupted after drain_grace_s.
                deadline = deadline or now + self._settings.drain_grace_s + 1
                if now >= deadline:
                    log.warning(
                        "not waiting for %s any longer", ", ".join(t.short for t in waiting)
                    )
                    return
            names = ", ".join(task.short for task in waiting)
            if names != reported:
                reported = names
                on_wait(names)
            waits.tick(f"{names} to finish")
            self._locked_job.clock.wait(self._leaving, 0.05)

    def _dismiss(self, phase: Phase, reason: str) -> None:
        """Tell the ps that the job is over, and wait until the other tasks know.

        A ps that was started again, for which the job has failed, hears that, too: if it has
        nothing of this job, and a launcher starts the chief again, it waits for that one, which
        goes on from the checkpoint.
        """

        def end(control: PsControl) -> bool:
            """End the job on a ps; returns whether it need not be told again."""
            try:
                again = returns and phase is Phase.FAILED and control.task in begun_again
                control.end_job(phase, reason, timeout_s=_ATTACH_S, began_again=again)
            except PeerLostError as error:
                log.debug("%s", error)
                return not self._comes_back(control.task)
            except RopewalkError as error:
                log.debug("%s", error)
            return True

        returns, grace_s = self._settings.chief_returns, self._settings.leave_grace_s
        until = self._locked_job.clock.now() + grace_s
        waits = WaitLog(
            self._who.task, limit_s=grace_s, limit="leave_grace_s", clock=self._locked_job.clock
        )
        with self._locked_job.open() as (job, _):
            begun_again = frozenset(job.begun_again)
        untold = tuple(self._controls)
        while True:
            told = list(self._pool.map(end, untold))
            untold = tuple(each for each, knows in zip(untold, told, strict=True) if not knows)
            self._lose_ended()
            with self._locked_job.open() as (job, now):
                job.expire(now=now)
                uninformed = job.uninformed() + [each.task for each in untold]
            if not uninformed or self._locked_job.clock.now() >= until:
                return
            waits.tick(", ".join(task.short for task in uninformed), "not told of the end yet")
            self._locked_job.clock.wait(threading.Event(), 0.05)

    def _lose_ended(self) -> None:
        """Give up tasks that cannot be told any more, before their lease is over: without ps each
        task listens, and one that is silent and does not has ended.
        """
        if self._controls:
            return
        with self._locked_job.open() as (job, now):
            members = [job.members[task] for task in job.uninformed()]
            silent_s = _SILENT_BEATS * self._settings.heartbeat_s
            silent = [each for each in members if each.address and now - each.heard > silent_s]
        for member in silent:
            if is_refused(member.address, _PORT_S):
                with self._locked_job.open() as (_, now):
                    member.enter(State.LOST, now, "its process has ended")

    def _comes_back(self, task: TaskId) -> bool:
        """Return whether a ps that does not answer may be starting again, and would wait for a
        chief.
        """
        leadership = self._leadership
        if not leadership.takes_ps() or leadership.has_lost_values():
            return False
        with self._locked_job.open() as (job, now):
            return now - job.members[task].heard <= job.lease_s

    def close(self) -> None:
        """Stop the loop at once."""
        self._leaving.set()
        self._leadership.close()
        self._losses.close()
        if self._thread.ident is not None:
            self._thread.join(_ATTACH_S * 2)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._saver.close()
        self._companions.close()
