"""How a program reaches the services: channels, transports, parameter sessions, membership."""
