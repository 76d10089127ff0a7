"""Errors that reach a user: one clear message and an exit code each (README, "Exit codes")."""

from __future__ import annotations


class PibrochError(Exception):
    """Base of all errors that the command line prints as one message, without a traceback."""

    exit_code = 1
    detail: str = ""  # what a person who debugs wants besides the message: a worker's traceback, its last output


class AnnotationWarning(UserWarning):
    """The tags of a model may not be what its author meant; the capture goes on."""


class InputError(PibrochError, ValueError):
    """The input is wrong or a check failed; the message names the file, the field or the node, and what to do."""

    exit_code = 1


class MissingError(PibrochError):
    """The environment lacks something; the message names it and what installs it."""

    exit_code = 3


class WorkerError(PibrochError):
    """A worker or peer died, or a deadline passed; the message names the rank."""

    exit_code = 4
    advice: str = ""  # what to do, where the event policy says so
