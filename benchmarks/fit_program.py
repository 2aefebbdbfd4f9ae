"""Our side of the comparison of ``fit``: what each task of ``ropewalk local`` runs.

    ropewalk local --plain --no-chief --workers 2 --ps 2 -m benchmarks.fit_program PREFIX

Each worker writes its figures into ``PREFIX<task>.json``. With servers it is
ParameterServerStrategy, without MultiWorkerMirroredStrategy; Keras runs on KERAS_BACKEND.
"""

import json
import os
import sys
from pathlib import Path

import keras

import ropewalk as rw

from .fit_model import EPOCHS, FIT_CASES, WARM_UP, arrays, compiled, result, timer


def main() -> None:
    """Fit every case."""
    servers = json.loads(os.environ["TF_CONFIG"])["cluster"].get("ps")
    kind = (
        rw.distribute.ParameterServerStrategy
        if servers
        else rw.distribute.MultiWorkerMirroredStrategy
    )
    strategy = kind()
    found = []
    for case in FIT_CASES:
        with strategy.scope():
            model = compiled(keras, case)
        x, y = arrays(case)
        timed = timer(keras)
        strategy.barrier()
        history = model.fit(
            x, y, batch_size=case.examples, shuffle=False, epochs=WARM_UP + EPOCHS, verbose=0,
            callbacks=[timed],
        )  # fmt: skip
        found.append(result(case, timed.epochs_s, history.history["loss"][-1]))
    Path(f"{sys.argv[1]}{strategy.extended.input_pipeline_id}.json").write_text(json.dumps(found))
    strategy.barrier()


if __name__ == "__main__":
    main()
