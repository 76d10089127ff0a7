"""The command line. Heavy imports stay inside the commands, so that `pibroch --help` answers at once."""

from pibroch.cli.app import main

__all__ = ["main"]
