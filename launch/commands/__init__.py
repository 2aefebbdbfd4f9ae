"""The subcommands of windlass that belong to no launcher."""
