"""The ledger of data: every example of every epoch is trained exactly once, by whichever worker."""
