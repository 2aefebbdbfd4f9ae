"""What tasks tell about themselves: metrics for Prometheus and TensorBoard's event files."""
