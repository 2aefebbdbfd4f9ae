"""HTTP/2 and gRPC's calls on top of it, on our own sockets."""
