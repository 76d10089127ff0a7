"""Shipped profiles, as data: see `pibroch.runtime.profile`."""
