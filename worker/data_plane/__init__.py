"""Ways of the values of variables from one task of a job to another: servers, a ring, or none."""
