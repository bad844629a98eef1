"""``cuda-gctx sim``: the software driver's own command line, which ``python -m cuda_gctx.sim`` is too."""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem

from cuda_gctx.cli._options import DRIVERS, profiles
from cuda_gctx.cli._output import writing

# Of each command; those of the program that is run are its own.
OPTIONS = {"run": ("--gpu", "--driver", "--devices"), **dict.fromkeys(("profiles", "explain", "path"), ("--json",))}


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from cuda_gctx.sim.__main__ import COMMANDS

    words = ctx.params.get("arguments") or ()
    if not words:
        return [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
    known = {"--gpu": list(profiles()), "--driver": list(DRIVERS)}.get(words[-1], [])
    return [CompletionItem(value) for value in known if value.startswith(incomplete)]


class _Sim(click.Command):
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Options, which the software driver's own command line reads, and click does not know."""
        words = ctx.params.get("arguments") or ("",)
        known = (*OPTIONS.get(words[0], ()), "--help")
        return [CompletionItem(option) for option in known if option.startswith(incomplete)]


@click.command(
    cls=_Sim, add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete, metavar="COMMAND ...")
@click.pass_context
def sim(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """The software driver: profiles, explain, path, run."""
    from cuda_gctx.sim.__main__ import main

    with writing():
        status = main(arguments, program=ctx.command_path)
        sys.stdout.flush()
    ctx.exit(status)
