"""Values and steps as bytes and messages."""
