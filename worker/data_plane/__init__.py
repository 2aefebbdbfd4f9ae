"""How the values of variables get from one task of a job to another: servers, a ring, or not."""
