"""The page and the terminal of a job: its history in bounded memory, shown in a browser or live."""
