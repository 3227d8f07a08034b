"""What is noted of requests: metrics, the access log."""
