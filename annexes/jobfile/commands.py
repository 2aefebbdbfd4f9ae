"""Commands that job files bring."""

COMMANDS = {
    "compose": "annexes.jobfile.job_commands:compose_command",
    "job": "annexes.jobfile.job_commands:job_command",
    "slurm": "annexes.jobfile.job_commands:slurm_command",
}
