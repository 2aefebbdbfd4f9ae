"""Links from a coordinator to the workers that run its closures."""
