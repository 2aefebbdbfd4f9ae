"""``ropewalk …`` as a process that also says what its stores hold, for :mod:`.counting_job`.

Each time the file ``digests-wanted`` has another number, the process writes, in a file of its own,
role, epoch and digest of each share that it has whole. With ``CERTIFICATES`` it shows its own ones
of that folder. While there is a file ``die-before-lead`` or ``die-after-lead``, the chief kills
itself in its next handover, once the leader has handed over: before it has told the next one to
lead, or before it has told workers of it.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])  # not the folder of helpers: they have names

from helpers.digests import digest_of  # noqa: E402
from ropewalk.annexes.replication.server.share import ReplicatedShare  # noqa: E402
from ropewalk.client.ps.control import PsControl  # noqa: E402
from ropewalk.cluster.replication.configuration import Lead  # noqa: E402
from ropewalk.core.task import Incarnation  # noqa: E402
from ropewalk.launch.cli import main  # noqa: E402

_POLL_S = 0.05
WANTED = Path("digests-wanted")


def digests() -> dict[int, tuple[str, int, str]]:
    """Role, epoch and digest by share."""
    gc.unfreeze()  # a ps keeps out of collections what was there when it had started
    # By its type: a weak proxy, as Numba has some, would be asked for its class.
    shares = [each for each in gc.get_objects() if type(each) is ReplicatedShare]
    return {
        each.number: (str(each.replica.role), each.replica.epoch, digest_of(each.store))
        for each in shares
        if each.replica.is_whole
    }


def _answer(index: int) -> None:
    answered = ""
    while True:
        wanted = WANTED.read_text() if WANTED.exists() else ""
        if wanted != answered:
            new = Path(f"{index}.new-digests")
            new.write_text(json.dumps(digests()))
            new.replace(f"digests-{wanted}-{index}")
            answered = wanted
        time.sleep(_POLL_S)


def _die_in_handovers() -> None:
    lead_share = PsControl.lead_share

    def killed(control: PsControl, who: Incarnation, order: Lead, **options: Any) -> None:
        def die(when: str) -> None:
            wanted = Path(f"die-{when}-lead")
            if order.leader_ended and wanted.exists():
                wanted.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        die("before")
        lead_share(control, who, order, **options)
        die("after")

    setattr(PsControl, "lead_share", killed)  # noqa: B010 - of this process alone


if __name__ == "__main__":
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    if certificates := os.environ.pop("CERTIFICATES", ""):
        own = Path(certificates, f"{task['type']}-{task['index']}")
        for part, name in {"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"}.items():
            os.environ[f"ROPEWALK_TLS_{part}"] = str(own / name)
    if task["type"] == "ps":
        threading.Thread(target=_answer, args=(task["index"],), daemon=True).start()
    if task["type"] == "chief":
        _die_in_handovers()
    main()
