"""`pibroch doctor`: what is here, and what each missing part would enable."""

from __future__ import annotations

from pibroch.cli.common import Json, finish

NAME = "doctor"


def command(as_json: Json = False) -> None:
    """Say what this machine has, and what each missing part would enable."""
    from pibroch import doctor
    from pibroch.runtime.errors import MissingError

    findings = doctor.examine()
    finish(doctor.as_data(findings), doctor.report(findings), as_json=as_json, failure=MissingError.exit_code)
