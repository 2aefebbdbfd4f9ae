"""The job file of the digits."""

from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.reading import read_job

from .processes import ROOT

DIGITS = ROOT / "examples" / "digits" / "ropewalk.yaml"


def digits() -> JobFile:
    return read_job(DIGITS)
