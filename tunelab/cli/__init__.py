"""The command line. A verb is one file here, with a click command called `command` in it, and one line in `VERBS`.

`tunelab --help` imports none of them: a verb's file is imported when the verb is used. What its function returns is the exit
status, 0 if it returns nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from tunelab import __version__
from tunelab.errors import TunelabError, UnknownNameError

# Verb -> (module, what it does).
VERBS = {
    "sweep": ("tunelab.cli.sweep", "Run an experiment's sweep, or go on with its latest one."),
    "resume": ("tunelab.cli.resume", "Go on with a sweep that was interrupted or killed."),
    "extend": ("tunelab.cli.extend", "Give a sweep more trials or more time, and go on."),
    "retry": ("tunelab.cli.retry", "Try failed trials again."),
    "stop": ("tunelab.cli.stop", "Stop a running sweep as Ctrl-C does, from elsewhere."),
    "rerun": ("tunelab.cli.rerun", "Run a trial once more and compare, or with other seeds."),
    "gc": ("tunelab.cli.gc", "Delete checkpoints that other retention counts do not keep."),
    "check": ("tunelab.cli.check", "Prove on two short attempts that an experiment keeps its promises."),
    "ls": ("tunelab.cli.ls", "List all sweeps."),
    "show": ("tunelab.cli.show", "Show a sweep's trials, or one trial."),
    "compare": ("tunelab.cli.compare", "Rank a sweep's trials and say which parameters mattered."),
    "best": ("tunelab.cli.best", "Print the best configuration and its checkpoint."),
    "why": ("tunelab.cli.why", "Tell why a trial was proposed, what happened to it and why it ended."),
    "export": ("tunelab.cli.export", "Make a model of the best checkpoint and prove that it predicts the same."),
    "predict": ("tunelab.cli.predict", "Predict with an exported model."),
    "ui": ("tunelab.cli.ui", "Open a sweep's MLflow pages."),
    "doctor": ("tunelab.cli.doctor", "Find and repair what killed drivers and dead servers left behind."),
}

INTERRUPTED = 130


class Verbs(click.Group):
    """The group of all verbs, which are loaded when they are used, and the one place where errors become messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return import_module(VERBS[cmd_name][0]).command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0].partition(":")[0].endswith(".py"):
            raise UnknownNameError(f"'{args[0]}' is a file. To run its sweep: tunelab sweep {args[0]}")
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            raise UnknownNameError.among("verb", args[0], VERBS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, what) for name, (_, what) in VERBS.items()])

    def main(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in given
        options["standalone_mode"] = False  # click hands errors on instead of printing them
        try:
            status = super().main([arg for arg in given if arg != "--debug"], *others, **options)
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read us, such as `head`, has seen enough
            sys.stdout = open("/dev/null", "w")  # noqa: SIM115  not to fail again when the interpreter flushes at its end
            status = 0
        except (click.Abort, KeyboardInterrupt):
            status = INTERRUPTED
        except click.ClickException as error:
            error.show()
            status = error.exit_code
        except TunelabError as error:
            if debug:
                raise
            click.echo(str(error), err=True)
            status = error.exit_status
        except Exception as error:
            if debug:
                raise
            click.echo(f"tunelab: unexpected {type(error).__name__}: {error}", err=True)
            click.echo("Run it with --debug for the traceback.", err=True)
            status = 1
        sys.exit(status if isinstance(status, int) else 0)


@click.group(
    cls=Verbs,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Help on a verb: tunelab VERB --help",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks; may stand anywhere.")
@click.version_option(__version__, message="tunelab %(version)s")
def cli() -> None:
    """Hyperparameter tuning on Ray Tune and Ray Train: sweeps that are tracked, resumable and exportable."""


def main() -> NoReturn:
    """What the command `tunelab` runs."""
    cli.main(prog_name="tunelab")
    raise AssertionError("main exits")
