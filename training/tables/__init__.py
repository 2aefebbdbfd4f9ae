"""Rows of tables in files: written from a running job, and read into one."""
