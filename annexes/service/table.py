"""The nodes and jobs of a standalone cluster: who is there, what runs where, and what comes next.

Events come in with their time, orders to nodes come out. Not thread-safe: the caller locks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...cluster.spec import CHIEF, PS, WORKER
from ...cluster.supervision.decisions import LOST
from ...core.errors import LimitExceededError, RefusedError
from ...core.task import TaskId
from ...core.terminal import counted
from .gpus import FreeGpus, gpus_for
from .job import ALL, JobState, PlacedTask, StandaloneJob, Submission
from .nodes import UNKNOWN, Node, Order, Start, Stop, choose_nodes, next_of, share_of, to_go

NODE_LEASE_S = 15.0
_KEPT = 100  # jobs that have ended
_FORGOTTEN_S = 3600.0  # after its last message a lost node is no longer listed


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The limits of what a standalone cluster takes on.

    Attributes:
        jobs: Most jobs that run at once.
        queued: Most that wait; half of them of one driver.
        workers: Most of one job; 0: as many as there are nodes.
        tasks_per_node: Most tasks of one node.
        nodes: Most of them, lost ones not counted.
    """

    jobs: int = 8
    queued: int = 128
    workers: int = 0
    tasks_per_node: int = 8
    nodes: int = 1024


class JobTable:
    """All nodes and jobs of a standalone cluster.

    Args:
        limits: Limits on what the cluster accepts.
        settings: Settings of all tasks of all jobs, by name.
        model_dir: Folder in which each job has one named by its id; empty: nothing is saved.
        job_id: Job id of the credentials, if they are for one job; empty: each job has its own id.
        max_ps_bytes: Quota of a job on each ps; 0: none.
    """

    def __init__(
        self,
        limits: ClusterLimits,
        settings: Mapping[str, str] | None = None,
        *,
        model_dir: str = "",
        job_id: str = "",
        max_ps_bytes: int = 0,
    ) -> None:
        self._limits = limits
        self._settings = dict(settings or {})
        if max_ps_bytes:
            self._settings["max_ps_bytes"] = str(max_ps_bytes)
        self._model_dir = model_dir.rstrip("/")
        self._job_id = job_id
        self.nodes: dict[TaskId, Node] = {}
        self.jobs: dict[str, StandaloneJob] = {}

    # -- nodes -------------------------------------------------------------------------------

    def why_wait(self, task: TaskId, instance: str, host: str, *, now: float) -> str:
        """Say why a process that comes as a node has to wait; empty: it may poll.

        Raises:
            RefusedError: Another process is this node.
        """
        node = self.nodes.get(task)
        return node.why_wait(instance, host, now=now) if node is not None else ""

    def node_polls(
        self,
        task: TaskId,
        instance: str,
        host: str,
        ports: Iterable[int],
        *,
        has_own_index: bool = False,
        gpus: Iterable[str] = (),
        now: float,
    ) -> Node:
        """Note that a node that need not wait gives a sign of life, offers free ports and GPUs.

        Raises:
            LimitExceededError: There are too many nodes.
        """
        node = self.nodes.get(task)
        if node is None:
            if len(self.nodes) >= self._limits.nodes:
                self._forget_a_node(task)
            node = self.nodes[task] = Node(task, instance, host, now)
        elif node.instance != instance:
            self._lose(node, now=now)
            node = self.nodes[task] = node.replaced_by(instance, host, now=now)
        node.heard, node.host, node.is_lost = now, host, False
        node.has_own_index, node.gpus = has_own_index, tuple(gpus)
        offered = list(ports)
        node.used &= set(offered)  # the node has replaced the others
        node.ports = [port for port in offered if port not in node.used]
        return node

    def node_runs(
        self, node: TaskId, running: Iterable[tuple[str, TaskId]], orders_taken: int, *, now: float
    ) -> None:
        """Compare all that a node runs with what was given to it: the rest has ended unheard.

        Args:
            node: Node that tells.
            running: Tasks that run there, or have ended without that this was told yet.
            orders_taken: Number of the last order that it had taken.
            now: The time.
        """
        given, told = self.nodes[node].running, set(running)
        for job, task in [key for key, number in given.items() if number <= orders_taken]:
            if (job, task) not in told:
                why = f"{task.short} was lost: its node {node.short} runs it no longer"
                self.task_ended(node, job, task, LOST, why=why, now=now)

    def task_ended(
        self, node: TaskId, job: str, task: TaskId, code: int, *, why: str = "", now: float
    ) -> None:
        """Handle how a task ended, as its node tells; ``why``, for people, if not by itself."""
        found = self.jobs.get(job)
        if node in self.nodes:
            self.nodes[node].running.pop((job, task), None)
        if found is None or task not in found.tasks or found.tasks[task].node != node:
            return
        here = self.nodes.get(node)
        settings = self._settings_of(found) if here is not None and not here.is_lost else None
        self._give(found.task_ended(task, code, settings, why=why, now=now))

    def was_placed(self, job: str, task: TaskId, node: TaskId) -> bool:
        """Return whether a task of a job that is known was given to this node."""
        placed = self.jobs[job].tasks.get(task) if job in self.jobs else None
        return placed is not None and placed.node == node

    def _lose(self, node: Node, *, now: float) -> None:
        node.is_lost = True
        node.orders.clear()
        for job, task in sorted(node.running):
            why = f"{task.short} was lost with its node"
            self.task_ended(node.task, job, task, LOST, why=why, now=now)
            # Should the node come back, what it still runs belongs to no job.
            node.orders.add(Stop(job, task, kill=True))
        node.used.clear()

    def _forget_a_node(self, newcomer: TaskId) -> None:
        lost = [node for node in self.nodes.values() if node.is_lost]
        if not lost:
            raise LimitExceededError(
                f"{newcomer.short} cannot be a node: this cluster has {len(self.nodes)}, which is "
                "the limit; start another cluster for it",
                task=newcomer,
                limit=self._limits.nodes,
            )
        del self.nodes[min(lost, key=lambda node: node.heard).task]

    # -- jobs --------------------------------------------------------------------------------

    def submit(self, submission: Submission, *, now: float) -> StandaloneJob:
        """Take a job; one that is known by its id is returned as it is.

        Raises:
            RefusedError: The id is that of another job, another job has its model's folder, or
                this cluster saves nothing and could not go on from a model.
            LimitExceededError: Too many wait, or it asks for too many workers.
        """
        known = self.jobs.get(submission.id)
        if known is not None:
            if known.submission != submission:
                raise RefusedError(
                    f"job {submission.id} exists already, with another program or of another "
                    "driver; submit it under another id",
                    job=submission.id,
                )
            return known
        most = self._limits.workers
        if most and submission.workers > most:
            raise LimitExceededError(
                f"job {submission.id} asks for {submission.workers} workers, and a job of this "
                f"cluster has up to {most} (max_job_workers)",
                workers=submission.workers,
                limit=most,
            )
        if submission.model and not self._model_dir:
            raise RefusedError(
                f"job {submission.id} is to go on from the model {submission.model}, and this "
                "cluster saves none; start its chief with --model-dir, a folder that all nodes "
                "share",
                job=submission.id,
            )
        for other in self.jobs.values():
            if not other.has_ended and other.submission.folder == submission.folder:
                raise RefusedError(
                    f"job {other.id} is writing the model {submission.folder}; stop it first, or "
                    "give this one another folder",
                    job=other.id,
                )
        self._check_queue(submission)
        job = self.jobs[submission.id] = StandaloneJob(submission, now, now)
        self._place_queued(now=now)
        return job

    def _check_queue(self, submission: Submission) -> None:
        waiting = [job for job in self.jobs.values() if job.state is JobState.QUEUED]
        own = sum(job.submission.owner == submission.owner for job in waiting)
        share = share_of(submission.owner, self._limits.queued)
        if len(waiting) >= self._limits.queued or own >= share:
            raise LimitExceededError(
                f"{len(waiting)} jobs wait already, {own} of them of {submission.owner or UNKNOWN} "
                f"(the limits are {self._limits.queued} and {share}); submit again when some have "
                "begun, or stop some with `ropewalk stop`",
                waiting=len(waiting),
                limit=self._limits.queued,
            )

    def find(self, job: str) -> StandaloneJob:
        """Find a job by its id, or by a name that no other one has.

        Raises:
            RefusedError: There is none, or there are several.
        """
        if job in self.jobs:
            return self.jobs[job]
        named = [each for each in self.jobs.values() if each.submission.name == job]
        living = [each for each in named if not each.has_ended] or named
        if len(living) == 1:
            return living[0]
        if living:
            ids = ", ".join(each.id for each in living)
            raise RefusedError(f"several jobs are called {job!r}: {ids}; name one by its id")
        raise RefusedError(f"there is no job {job[:70]!r}; `ropewalk jobs` lists them")

    def stop(self, job: str, reason: str, *, kill: bool = False, now: float) -> StandaloneJob:
        """Ask a job to save and end, or end it at once.

        Raises:
            RefusedError: There is no such job.
        """
        found = self.find(job)
        self._give(found.stop(reason, kill=kill, now=now))
        return found

    def scale(self, job: str, ps: int) -> StandaloneJob:
        """Have a job whose shares move have this many ps: start some, or ask the last to leave.

        Raises:
            RefusedError: There is no such job, it does not run, its shares do not move, or there
                is no room for so many.
        """
        found = self.find(job)
        missing = found.missing_ps(ps)
        # The job knows one that it had before at its address.
        known = [found.tasks[task] for task in missing if task in found.tasks]
        again = [PlacedTask(each.task, each.node, each.address) for each in known]
        used = {each.node for each in found.tasks.values() if not each.has_ended}
        nodes = {node.task: node for node in self._living(PS) if node.task not in used}
        gone = [each for each in again if each.node not in nodes]
        fresh = [task.index for task in missing if task not in found.tasks]
        others = [nodes[each] for each in nodes if each not in {one.node for one in again}]
        placed, obstacle = self._place_role(PS, fresh, others, (), found.submission)
        if gone:
            obstacle = f"the node {gone[0].node.short}, where {gone[0].task.short} was before"
        if obstacle:
            raise RefusedError(
                f"job {found.id} cannot have {ps} ps, for it would take {obstacle}; start nodes "
                "with `ropewalk ps --standalone`, or wait until others have ended",
                job=found.id,
            )
        self._take_ports([*again, *placed])
        self._give(found.scale(ps, [*again, *placed], self._settings_of(found)))
        return found

    def tick(self, *, now: float) -> None:
        """Notice what did not happen: nodes and drivers that are silent, tasks that do not end."""
        for node in [*self.nodes.values()]:
            if not node.is_lost and now - node.heard > NODE_LEASE_S:
                self._lose(node, now=now)
            elif node.is_lost and now - node.heard > _FORGOTTEN_S:
                del self.nodes[node.task]
        for job in self.jobs.values():
            asked = job.submission
            silent_s = now - job.driver_heard
            lives = job.state in (JobState.QUEUED, JobState.RUNNING)
            if lives and not asked.detached and silent_s > asked.grace_s:
                why = f"its driver was silent for {silent_s:.0f} s ({asked.grace_s:g} allowed)"
                self._give(job.stop(why, kill=False, now=now))
            self._give(job.overdue(now=now))
        self._place_queued(now=now)
        ended = sorted(
            (job for job in self.jobs.values() if job.has_ended), key=lambda each: each.ended or 0
        )
        for job in to_go(ended, _owner, _KEPT):
            del self.jobs[job.id]

    def _place_queued(self, *, now: float) -> None:
        at_work = (JobState.RUNNING, JobState.STOPPING)
        running = Counter(_owner(job) for job in self.jobs.values() if job.state in at_work)
        waiting = [job for job in self.jobs.values() if job.state is JobState.QUEUED]
        while waiting:
            job = next_of(waiting, _owner, running)
            waiting.remove(job)
            if running.total() >= self._limits.jobs:
                job.reason = f"{running.total()} jobs run, which is the limit"
                continue
            placed, obstacle = self._place(job)
            if obstacle:
                job.reason = obstacle
                continue
            running[_owner(job)] += 1
            self._take_ports(placed)
            self._give(job.begin(placed, self._settings_of(job), now=now))

    def _place(self, job: StandaloneJob) -> tuple[list[PlacedTask], str]:
        placed: list[PlacedTask] = []
        asked = job.submission
        for role, count in ((CHIEF, 1), (PS, asked.ps), (WORKER, asked.workers)):
            nodes = self._living(role)
            if count == ALL and not nodes:
                return [], f"it waits for a node for {role}: none is registered"
            wanted = len(nodes) if count == ALL else count
            if role == WORKER and self._limits.workers:
                wanted = min(wanted, self._limits.workers)
            more, obstacle = self._place_role(role, range(wanted), nodes, placed, asked)
            if obstacle:
                return [], f"it waits for {obstacle}"
            placed += more
        return placed, ""

    def _place_role(
        self,
        role: str,
        indices: Sequence[int],
        nodes: Sequence[Node],
        beside: Sequence[PlacedTask],
        asked: Submission,
    ) -> tuple[list[PlacedTask], str]:
        """Choose places for tasks of a role, one on each node; or say what is missing, for people.

        Args:
            role: The role.
            indices: Indices of the tasks.
            nodes: Nodes that may have a task.
            beside: Tasks whose places are not in the table yet.
            asked: The job, as it was submitted.
        """
        roomy = [n for n in nodes if n.ports and len(n.running) < self._limits.tasks_per_node]
        gpus = self._gpus_of_nodes(roomy, beside, asked)
        free = [node for node in roomy if node.task in gpus]
        if len(indices) > len(free):
            each = asked.gpus_per_worker if len(free) < len(roomy) else 0
            with_gpus = f" with {counted(each, 'free GPU')} each" if each else ""
            return [], (
                f"{len(indices)} nodes for {role}{with_gpus}: {len(nodes)} are registered, of "
                f"which {len(free)} have room"
            )
        chosen, missing = choose_nodes(free, indices)
        if missing is not None:
            return [], (
                f"room at the node {role}:{missing}: the credentials of {free[0].task.short} and "
                "others are good for the task of their own index alone"
            )
        # Nodes of one machine may offer the same port.
        taken = {each.address for each in beside}
        for other in self.jobs.values():
            if not other.has_ended:
                taken |= {task.address for task in other.tasks.values()}
        placed: list[PlacedTask] = []
        for index, node in zip(indices, chosen, strict=True):
            offered = (f"{node.host}:{port}" for port in node.ports)
            address = next((each for each in offered if each not in taken), "")
            if not address:
                return [], f"a free port of the node {node.task.short}"
            taken.add(address)
            placed.append(PlacedTask(TaskId(role, index), node.task, address, gpus[node.task]))
        return placed, ""

    def _gpus_of_nodes(
        self, nodes: Sequence[Node], beside: Sequence[PlacedTask], asked: Submission
    ) -> dict[TaskId, tuple[str, ...]]:
        """Choose the GPUs that a task has on each of these nodes; one that has too few is left out.

        All of them can begin at once: nodes of one machine have the same GPUs.
        """
        free = FreeGpus(self.jobs.values(), list(self.nodes.values()), beside)
        order = sorted(nodes, key=lambda node: (not node.has_own_index, node.load))
        taken = ((node.task, free.take(node, gpus_for(asked, node))) for node in order)
        return {task: gpus for task, gpus in taken if gpus is not None}

    def _take_ports(self, placed: Iterable[PlacedTask]) -> None:
        for each in placed:
            node = self.nodes[each.node]
            port = int(each.address.rpartition(":")[2])
            node.ports = [each for each in node.ports if each != port]
            node.used.add(port)

    def _living(self, role: str) -> list[Node]:
        found = [n for n in self.nodes.values() if n.task.type == role and not n.is_lost]
        return sorted(found, key=lambda node: node.task.index)

    def _settings_of(self, job: StandaloneJob) -> dict[str, str]:
        own = {"job_id": self._job_id or job.id}
        if model_dir := self.model_dir_of(job):
            own["model_dir"] = model_dir
        return {**self._settings, **own}

    def model_dir_of(self, job: StandaloneJob) -> str:
        """Return the folder of a job's checkpoints; empty: the cluster saves none."""
        return f"{self._model_dir}/{job.submission.folder}" if self._model_dir else ""

    def _give(self, orders: Sequence[tuple[TaskId, Order]]) -> None:
        for task, order in orders:
            node = self.nodes.get(task)
            if node is None or node.is_lost:
                continue
            number = node.orders.add(order)
            if isinstance(order, Start):
                node.running[order.job, order.task] = number


def _owner(job: StandaloneJob) -> str:
    return job.submission.owner
