"""Names in the metadata of gRPC calls by which callers and servers show who they are."""

AUTHORIZATION = "authorization"
ANSWER = "windlass-answer"
