"""What a variable is and how it changes, as data."""
