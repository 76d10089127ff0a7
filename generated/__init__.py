"""What the loop wrote from specs."""
