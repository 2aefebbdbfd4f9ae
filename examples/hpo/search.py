"""Optuna chooses hyperparameters, and a standalone cluster trains: each trial is a job of its own.

    ropewalk local --standalone --ps 1 --workers 2 --port 2222
    export ROPEWALK_CLUSTER=127.0.0.1:2222
    python search.py --trials 20 --at-once 2

Needs `pip install optuna`, here alone: the cluster knows nothing of it.
"""

import argparse
import re
import signal
import subprocess
import sys
from pathlib import Path

import optuna

LINE = re.compile(r"chief:0 \| step (\d+) validation loss (\S+)")


def objective(trial):
    """The validation loss of a job with the hyperparameters of a trial."""
    values = {
        "rate": trial.suggest_float("rate", 1e-3, 1.0, log=True),
        "momentum": trial.suggest_float("momentum", 0.0, 0.95),
    }
    flags = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    submit = ["submit", "train.py", "--name", f"trial-{trial.number}", "--workers", "1", "--plain"]
    job = subprocess.Popen(
        [sys.executable, "-m", "ropewalk", *submit, "--", *flags],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    loss, lines = None, []
    for line in job.stdout:  # as they are printed
        lines.append(line)
        if found := LINE.search(line):
            step, loss = int(found[1]), float(found[2])
            trial.report(loss, step)
            if trial.should_prune():
                job.send_signal(signal.SIGINT)  # the job saves and ends
                job.wait()
                raise optuna.TrialPruned
    if job.wait() != 0 or loss is None:
        # A rate so large that the loss is no number any more ends here: the search goes on.
        raise RuntimeError(f"exit code {job.returncode}\n{''.join(lines[-20:])}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner()
    )
    study.optimize(
        objective, n_trials=options.trials, n_jobs=options.at_once, catch=(RuntimeError,)
    )
    best = {name: round(value, 4) for name, value in study.best_params.items()}
    print(f"best: {study.best_value:.5f} with {best}, of {len(study.trials)} trials")
