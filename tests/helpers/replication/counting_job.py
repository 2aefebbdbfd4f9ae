"""A job with replicas of which a test ends any process: every task counts its own steps."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ropewalk.client.chief.calls import ChiefClient
from ropewalk.cluster.access import Principal
from ropewalk.cluster.replication.configuration import Move, ShareLeader
from ropewalk.core.errors import RopewalkError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.net.this_machine import free_ports

from ..clusters import HandStarted, tf_configs
from ..links import Links
from ..network import Door, Network
from ..tls_files import LOCAL, issued, write
from ..waiting import scaled, wait_until
from .histories import check_histories, read_history
from .host_links import HostLinks

_HELPERS = Path(__file__).resolve().parent
_OUTER = "127.0.0.2"  # of proxies
_NO_MEMORY = {"ROPEWALK_SHARED_MEMORY": "false"}
_OVER = {"tls": _NO_MEMORY, "tunnel": {"ROPEWALK_TCP_SESSIONS": "false", **_NO_MEMORY}}


class CountingJob(HandStarted):
    """A chief, some workers and some ps, between which shares move; see
    :mod:`helpers.replication.counting_program`.

    Args:
        folder: Where they run.
        ps: Number of ps.
        workers: Number of workers.
        readers: How many of them, the last ones, only read.
        chief_counts: The chief counts its steps, too. One that is to be killed does not.
        rows: Rows of the large variable, each of 128 bytes.
        pause_s: Time between two steps of a task, which leaves others the processor. Unit: seconds.
        rebalances: The chief moves shares by itself.
        replicas: How many ps have each share.
        shares: Number of shares; 0: one for each ps.
        linked: All that tasks send to each other goes over :attr:`links`; they share no memory.
        keyed: Steps count in rows of a growing table, too. No worker may be killed then: what it
            had not heard of may be in one of the two.
        over: What they send goes over ``tls``, or a ``tunnel`` through gRPC; if that is empty, over
            what they choose.
        network: Has a host for each task, by :func:`host_of`, on which that runs; None: all run on
            this machine. They have :attr:`links` then, too.
        environment: Variables of all processes.

    Attributes:
        links: The network between the tasks; None: nothing happens to it.
    """

    def __init__(
        self,
        folder: Path,
        ps: int = 2,
        *,
        workers: int = 2,
        readers: int = 0,
        chief_counts: bool = True,
        rows: int = 20_000,
        pause_s: float = 0.0 if "SOAK" in os.environ else 0.004,
        rebalances: bool = False,
        replicas: int = 2,
        shares: int = 0,
        linked: bool = False,
        keyed: bool = False,
        over: str = "",
        network: Network | None = None,
        **environment: str,
    ) -> None:
        self.folder = folder
        self.num_workers = workers
        self.configs = tf_configs(chief=1, worker=workers, ps=ps)
        self.environment = {
            "ROPEWALK_PS_REPLICAS": str(replicas),
            "ROPEWALK_PS_SHARES": str(shares),
            "ROPEWALK_MODEL_DIR": str(folder / "model"),
            "ROPEWALK_REBALANCE": str(int(rebalances)),
            **_OVER.get(over, {}),
            **environment,
        }
        self._settings = Settings()
        if over == "tls":
            self._issue_certificates()
        self._has_followers = replicas > 1
        self._keyed = keyed
        self._moves = replicas > 1 or shares > 0
        self._shares = shares or ps
        self.links: Links | HostLinks | None = None
        self._network = network
        self._door: Door | None = None
        if linked:
            self._put_proxies()
        if network is not None:
            self._put_on(network)
        words = ["--rows", str(rows), "--pause-s", str(pause_s), "--counts", str(self._shares)]
        words += ["--workers", str(workers), "--readers", str(readers)]
        words += ["--chief-counts"] if chief_counts else []
        words += ["--keyed"] if keyed else []
        program = str(_HELPERS / "counting_program.py")
        task = str(_HELPERS / "counting_task.py")
        self.command = ["python", "-u", task, "run", program, "--", *words]
        self._counting = range(0 if chief_counts else 1, workers - readers + 1)
        self._client: ChiefClient | None = None
        super().__init__(self.command, self.configs, folder, **self.environment)

    def _command_of(self, task: str) -> list[str]:
        words = super()._command_of(task)
        return words if self._network is None else self._network.command(host_of(task), words)

    def _issue_certificates(self) -> None:
        """Certificates of all tasks, each of which finds its own, and of the test."""
        folder = self.folder / "certificates"
        for task in self.configs:
            role, index = task.split(":")
            write(folder / f"{role}-{index}", issued(role, int(index), hosts=(*LOCAL, _OUTER)))
        self.environment["CERTIFICATES"] = str(folder)
        self._settings = Settings(**write(folder / "driver", issued("driver", None)))

    def _put_proxies(self) -> None:
        """Let the tasks know each other by addresses at which proxies listen."""
        addresses = {}
        for task, config in self.configs.items():
            role, index = task.split(":")
            host, port = json.loads(config)["cluster"][role][int(index)].split(":")
            addresses[task] = (_OUTER, int(port)), (host, int(port))
            self.configs[task] = config.replace(host, _OUTER)
        self.environment |= {"ROPEWALK_HOST": host, "ROPEWALK_SHARED_MEMORY": "false"}
        self.links = Links(addresses, lambda: {t: p.pid for t, p in self.running.items()})

    def _put_on(self, network: Network) -> None:
        """Let each task run on a host of its own, and know the others by their addresses."""
        text = {task: json.loads(config) for task, config in self.configs.items()}
        cluster = text["chief:0"]["cluster"]
        for role, addresses in cluster.items():
            for index, address in enumerate(addresses):
                host = network.addresses[host_of(f"{role}:{index}")]
                addresses[index] = f"{host}:{address.rpartition(':')[2]}"
        for task, config in text.items():
            self.configs[task] = json.dumps({**config, "cluster": cluster})
        # The hosts share the memory of one machine, which those of a cluster do not.
        everywhere = {"ROPEWALK_HOST": "0.0.0.0", "ROPEWALK_INSECURE": "1"}  # noqa: S104
        self.environment |= {**everywhere, **_NO_MEMORY}
        self._settings = Settings(insecure=True)
        self.links = HostLinks(network, {task: host_of(task) for task in self.configs})
        self._door = network.door(host_of("chief:0"), int(self.address.rpartition(":")[2]))

    @property
    def ps(self) -> list[str]:
        """All ps."""
        return [task for task in self.configs if task.startswith("ps")]

    def until_said(self, *words: str) -> None:
        """Wait until the chief has said each of these, in this order."""

        def has_said() -> bool:
            text, start = self.said("chief:0"), 0
            for each in words:
                start = text.find(each, start) + 1
                if not start:
                    return False
            return True

        wait_until(has_said, 60, " … ".join(words))

    # -- steps ---------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """How many steps each task has made."""
        return [int(each.split()[0]) if each else 0 for each in self._progress()]

    def _progress(self) -> list[str]:
        files = [self.folder / f"steps-{slot}" for slot in range(self.num_workers + 1)]
        return [file.read_text() if file.exists() else "" for file in files]

    def go_on(self, steps: int = 5) -> None:
        """Wait until each task has made some more steps."""
        before = self.steps()

        def has_gone_on() -> bool:
            for index in range(self.num_workers):
                task = f"worker:{index}"
                code = self.running[task].poll()
                assert code is None, f"{task} has ended with {code}: {self.said(task)[-3000:]}"
            return all(self.steps()[slot] >= before[slot] + steps for slot in self._counting)

        wait_until(has_gone_on, 30, "steps of all tasks")

    # -- the chief -----------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the chief is."""
        return str(json.loads(self.configs["chief:0"])["cluster"]["chief"][0])

    @contextmanager
    def chief(self) -> Iterator[ChiefClient]:
        """Calls to the chief; after a failure they go over another connection."""
        if self._client is None:
            address = self.address if self._door is None else self._door.address
            self._client = ChiefClient(address, self._settings, Principal("driver"))
        try:
            yield self._client
        except RopewalkError:
            self._close_client()
            raise

    def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def shares(self) -> tuple[ShareLeader, ...]:
        """Who leads and follows, as the chief says; nothing if it does not answer."""
        try:
            with self.chief() as chief:
                return chief.status(timeout_s=2).shares
        except RopewalkError:
            return ()

    def move(self, share: int, to: TaskId) -> Move:
        """Have another ps lead a share, and wait until it does, or cannot."""
        with self.chief() as chief:
            number = chief.move_share(share, to, timeout_s=10).number

            def over() -> Move | None:
                move = chief.status(timeout_s=10).move
                return move if move is not None and move.phase.is_over else None

            wait_until(lambda: over() is not None, 30, f"the move of share {share} to {to.short}")
            move = over()
        assert move is not None
        assert move.number == number
        return move

    def until_whole(self) -> None:
        """Wait until every share has its followers, and no decision waits to be obeyed.

        Where shares do not move nobody decides about them.
        """
        if not self._moves:
            return

        def is_whole() -> bool:
            shares = self.shares()
            decided = {each.share: each.epoch for each in shares} == self._epochs_written()
            followed = all(bool(each.followers) is self._has_followers for each in shares)
            return decided and followed and len(shares) == self._shares

        wait_until(is_whole, 60, "replicas of all shares")

    def _epochs_written(self) -> dict[int, int]:
        """The chief's last decision about each share, which the ps may not have heard of yet."""
        file = Path(self.environment["ROPEWALK_MODEL_DIR"]) / "job.json"
        if not file.exists():
            return {}
        return {each["share"]: each["epoch"] for each in json.loads(file.read_text())["shares"]}

    def start_again(self, task: str) -> None:
        """Start a task again, as a cluster manager does."""
        self.running[task].wait(scaled(10))
        before = self.folder / f"before-{task.replace(':', '-')}.txt"
        with before.open("a") as file:
            file.write(self.said(task))
        self.begin(task, self.configs[task])

    def start_more(self, *indices: int) -> None:
        """Start ps that the cluster did not have; each finds the chief by its own TF_CONFIG."""
        config = json.loads(self.configs["ps:0"])
        for index, port in zip(indices, free_ports(len(indices)), strict=True):
            config["cluster"]["ps"].append(f"127.0.0.1:{port}")
            config["task"]["index"] = index
            self.configs[f"ps:{index}"] = json.dumps(config)
        for index in indices:
            self.begin(f"ps:{index}", self.configs[f"ps:{index}"])

    def leave(self, *tasks: str) -> None:
        """Ask ps to leave, all at once, and wait until they have ended in order."""
        for task in tasks:
            self.running[task].terminate()
        for task in tasks:
            code = self.running[task].wait(scaled(15))
            assert code == 0, self.said("chief:0") + self.said(task)

    # -- the end -------------------------------------------------------------------------------

    def stop_counting(self) -> None:
        """Let all tasks make no more steps, and wait until they have said how many they made."""
        (self.folder / "enough").touch()
        wait_until(
            lambda: all(each.endswith("all") for each in self._progress()), 60, "the last steps"
        )

    def digests(self) -> dict[int, dict[str, tuple[str, int, str]]]:
        """What each ps says of each share that it has: role, epoch and digest, by share and ps."""
        file = self.folder / "digests-wanted"
        number = str(int(file.read_text()) + 1 if file.exists() else 1)
        file.with_suffix(".new").write_text(number)
        file.with_suffix(".new").replace(file)
        answers = {ps: self.folder / f"digests-{number}-{ps[3:]}" for ps in self.ps}
        wait_until(lambda: all(each.exists() for each in answers.values()), 30, "digests")
        found: dict[int, dict[str, tuple[str, int, str]]] = {}
        for ps, answer in answers.items():
            for share, digest in json.loads(answer.read_text()).items():
                found.setdefault(int(share), {})[ps] = tuple(digest)
        return found

    def check_digests(self) -> None:
        """Check that leader and follower of each share hold the same, once all steps were made."""
        self.until_whole()
        found = self.digests()
        for share in self.shares():
            has = found[share.share]
            kept = {task.short: has.get(task.short) for task in (share.leader, *share.followers)}
            assert None not in kept.values(), kept
            assert len({each[2] for each in kept.values() if each is not None}) == 1, kept

    def end(self) -> None:
        """Let the program end, and check every count and every read."""
        for each in ("enough", "over"):
            (self.folder / each).touch()
        ended = self.wait()
        assert {task: each.code for task, each in ended.items()} == dict.fromkeys(ended, 0), (
            "\n".join(f"{task}: {each.text[-3000:]}" for task, each in ended.items())
        )
        [line] = [line for line in ended["chief:0"].text.splitlines() if line[:1] == "{"]
        found = json.loads(line)
        files = [self.folder / f"history-{slot}" for slot in range(self.num_workers + 1)]
        histories = [read_history(file, slot) for slot, file in enumerate(files)]
        check_histories(histories, found["counts"])
        least = sum(each.acknowledged for each in histories)
        most = sum(len(each.pushes) for each in histories)
        assert all(least <= each <= most for each in found["table"]), (found, least, most)
        if self._keyed:
            counts = found["counts"][0]
            assert found["keyed"] == [*counts, sum(counts)]

    def stop(self) -> None:
        """End what still runs."""
        self._close_client()
        for process in self.running.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait(10)
        if self.links is not None:
            self.links.close()
        if self._door is not None:
            self._door.close()


def host_of(task: str) -> str:
    """Name of the host on which a task runs in a network."""
    return task.replace(":", "-")


@contextmanager
def counting_job(folder: Path, ps: int = 2, **options: Any) -> Iterator[CountingJob]:
    """A job whose counts are checked at the end; see :class:`CountingJob`."""
    job = CountingJob(folder, ps, **options)
    try:
        job.until_whole()
        yield job
        job.end()
    finally:
        job.stop()
