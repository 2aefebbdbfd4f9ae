"""Commands that event files bring."""

COMMANDS = {"tensorboard": "annexes.tensorboard.command:tensorboard_command"}
