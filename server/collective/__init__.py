"""What a worker of a synchronous job serves: its end of the ring."""
