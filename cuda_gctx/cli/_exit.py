"""How commands end: errors with a message and an exit status. Click reports wrong usage with status 2."""

from __future__ import annotations

import click


class Failure(click.ClickException):
    """The answer is negative, or the command failed."""

    exit_code = 1


class NoDevice(Failure):
    """There is no driver, or no such device."""

    exit_code = 3


class CannotRun(Failure):
    """A command cannot be run, as in a shell."""

    exit_code = 127


class Interrupted(Failure):
    """Ended by Ctrl-C."""

    exit_code = 130
