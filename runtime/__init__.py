"""Annotate, capture, lower, verify, simulate, execute and trace a training schedule."""
