"""Specs: the source of truth that modules and schedules are written from."""
