"""Variables: in this process's memory, mirrored over devices, on parameter servers, cut into shards."""
