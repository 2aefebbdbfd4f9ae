"""Telemetry of tasks: metrics for Prometheus and TensorBoard's event files."""
