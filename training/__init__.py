"""What people call to train."""
