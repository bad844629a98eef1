"""``cuda-gctx doctor``: find settings that prevent or distort the use of partitions, and suggest fixes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict

import click
from rich.text import Text

from cuda_gctx.cli._exit import Failure
from cuda_gctx.cli._options import device_number, driver_options
from cuda_gctx.cli._output import ResultTable, console, write_json
from cuda_gctx.cli.sim import simulated

COLOURS = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@click.command()
@driver_options
@device_number
@click.pass_context
def doctor(ctx: click.Context, number: int | None, profile: str | None, version: str | None, as_json: bool) -> None:
    """Check the environment and suggest fixes.

    Checks the driver, the devices, MPS, MIG, settings and versions. The exit status is 1 if there is a problem, and 0
    if there are only warnings.

    \b
    Examples:
      cuda-gctx doctor
    """
    from cuda_gctx.cli._checks import check_environment

    with nullcontext() if profile is None else simulated(profile, version):
        findings = list(check_environment(number, profile))
    problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        write_json("doctor", {"healthy": not problems, "checks": [asdict(finding) for finding in findings]})
    else:
        rows = [(Text(finding.state, COLOURS[finding.state]), finding.subject, finding.found) for finding in findings]
        out = console()
        out.print(ResultTable(("state", "subject", "found"), rows))
        for finding in findings:
            if finding.path is not None:
                out.print(f"\n{finding.subject}: {finding.path}", soft_wrap=True)
        advised = [finding for finding in findings if finding.advice is not None]
        if advised:
            out.print("\nSuggested fixes:")
        for finding in advised:
            out.print(f"- {finding.subject}: {finding.advice}")
    if problems:
        ctx.exit(Failure.exit_code)
