"""Long-running services: ``ps`` holds the variables, ``chief`` leads the job."""
