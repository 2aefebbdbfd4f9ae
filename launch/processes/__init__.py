"""Task processes: started, watched, stopped."""
