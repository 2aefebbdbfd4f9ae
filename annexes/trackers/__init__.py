"""Numbers of a job in the experiment trackers that people have: MLflow, Weights & Biases."""
