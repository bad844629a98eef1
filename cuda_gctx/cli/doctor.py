"""``cuda-gctx doctor``: what of the environment stands in the way, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import json_option
from cuda_gctx.cli._output import console, table, write_json

COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Looks for what stands in the way, and says what to do.

    Looks at the driver, MPS, MIG, settings and versions. Ends with status 1 if there is a problem. Warnings alone end
    with 0.
    """
    from cuda_gctx.cli._checks import check_environment

    findings = list(check_environment())
    problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        write_json("doctor", {"healthy": not problems, "checks": [asdict(finding) for finding in findings]})
    else:
        rows = [(Text(finding.state, COLOURS[finding.state]), finding.subject, finding.found) for finding in findings]
        out = console()
        out.print(table(("state", "about", "found"), rows))
        advised = [finding for finding in findings if finding.advice is not None]
        if advised:
            out.print("\nWhat to do:")
        for finding in advised:
            out.print(f"- {finding.subject}: {finding.advice}")
    if problems:
        ctx.exit(Failure.exit_code)
