"""Resolvers of this task and the others, from TF_CONFIG, launchers and pods."""
