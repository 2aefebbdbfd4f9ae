"""Commands that certificates bring."""

COMMANDS = {"certs": "annexes.certificates.command:certs_command"}
