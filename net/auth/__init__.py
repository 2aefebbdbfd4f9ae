"""Authentication: how a caller shows who it is, and how a server checks it."""
