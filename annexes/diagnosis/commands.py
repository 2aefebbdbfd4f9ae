"""Commands that ask tasks what they do."""

COMMANDS = {
    "log-level": "annexes.diagnosis.asking_commands:log_level_command",
    "report": "annexes.diagnosis.report:report_command",
    "stacks": "annexes.diagnosis.asking_commands:stacks_command",
}
