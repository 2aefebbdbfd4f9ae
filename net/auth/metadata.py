"""Metadata keys of gRPC calls with which callers and servers authenticate themselves."""

AUTHORIZATION = "authorization"
ANSWER = "ropewalk-answer"
