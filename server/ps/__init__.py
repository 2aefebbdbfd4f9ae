"""A parameter server: shards of variables in blocks, update kernels, exactly-once pushes."""
