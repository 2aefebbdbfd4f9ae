"""Jobs on this machine."""
