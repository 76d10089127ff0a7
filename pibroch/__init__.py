"""Pibroch writes, proves, runs and evolves distributed-training schedules."""
