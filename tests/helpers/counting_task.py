"""``ropewalk …`` as a process that also says what its stores hold, for :mod:`helpers.counting_job`.

Each time the file ``digests-wanted`` has another number, the process writes, in a file of its own,
role, epoch and digest of each share that it has whole. With ``CERTIFICATES`` it shows its own ones
of that folder.
"""

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # not the folder of helpers: they have names

from helpers.digests import digest_of  # noqa: E402
from ropewalk.launch.cli import main  # noqa: E402
from ropewalk.server.ps.replication.share import ReplicatedShare  # noqa: E402

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


if __name__ == "__main__":
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    if certificates := os.environ.pop("CERTIFICATES", ""):
        own = Path(certificates, f"{task['type']}-{task['index']}")
        for part, name in {"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"}.items():
            os.environ[f"ROPEWALK_TLS_{part}"] = str(own / name)
    if task["type"] == "ps":
        threading.Thread(target=_answer, args=(task["index"],), daemon=True).start()
    main()
