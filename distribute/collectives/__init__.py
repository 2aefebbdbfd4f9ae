"""Collective operations between workers: a ring, ours, over shared memory or gRPC; NCCL between GPUs."""
