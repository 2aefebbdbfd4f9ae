"""The command of traces."""

COMMANDS = {"trace": "annexes.traces.trace_command:trace_command"}
