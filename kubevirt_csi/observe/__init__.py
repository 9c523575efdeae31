"""What the driver tells about itself: logs, metrics, health, and the running call that they all refer to."""
