"""How a coordinator reaches the workers that run its closures."""
