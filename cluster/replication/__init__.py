"""Replication: the ps that leads a share, those that follow it, and what each may do. Pure.

A **share** is what a ps serves as one: blocks, marks of pushes and the global step. One ps leads
it and answers workers; followers have the same contents, record by record. The chief decides who
leads, in **epochs**: each of its configurations has a higher one than that before. The family of
protocols is primary-backup with a configuration manager (PacificA: Lin et al., MSR-TR-2008-25).

``configuration`` has the chief's decisions about one share, ``replica`` those of a ps. Both are
what the code runs and what ``tests/helpers/replication/model.py`` searches exhaustively. ``shares``
has the chief's decisions about all of them, ``balancing`` which one is to move.
"""
