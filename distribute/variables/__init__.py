"""Variables: local, mirrored over devices, on parameter servers, cut into shards."""
