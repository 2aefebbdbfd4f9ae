"""What commands show: terminal, tables, numbers and progress."""
