"""Workers in sync: the strategy, the ring between them, and their part in a job."""
