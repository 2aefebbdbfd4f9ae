"""docs/kubernetes.md says what follows of faults as the opt-in tests try it."""

import re

from helpers.kubernetes.cluster_faults import FAILS_THE_JOB, FAULTS
from helpers.processes import ROOT
from ropewalk.annexes.jobfile.reading import parse_job

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def test_every_row_of_the_table_of_faults_is_tried_on_a_real_cluster() -> None:
    [table] = re.findall(r"\| what happens \| what follows \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    rows = [line.split("|")[1].strip() for line in table.splitlines()]
    assert set(rows) == {fault.row for fault in FAULTS} | {FAILS_THE_JOB}


def test_the_job_files_of_the_page_are_jobs() -> None:
    parts = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    assert parts
    for part in parts:
        said = parse_job(f"name: a\nimage: b\nprogram: c.py\n{part}").kubernetes
        assert said.gang is not None or said.at_once


def test_ten_faults_are_of_every_role() -> None:
    assert len(FAULTS) == 10
    assert {fault.task.partition(":")[0] for fault in FAULTS} == {"chief", "ps", "worker"}
