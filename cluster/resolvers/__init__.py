"""Which task this is and where the others are, from TF_CONFIG, launchers and pods."""
