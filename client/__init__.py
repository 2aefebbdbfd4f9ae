"""How a program reaches the services: sessions with ps, calls to the chief, membership."""
