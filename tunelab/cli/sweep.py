"""`tunelab sweep`: an experiment file in, a tuned, tracked, resumable sweep out."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tunelab.cli import common, running
from tunelab.errors import BadInputError, UnfinishedSweepError
from tunelab.journal.home import Home, SweepFolder
from tunelab.journal.state import SweepState


@click.command
@click.argument("file", metavar="FILE[:NAME]")
@running.budget_options
@running.change_options
@running.place_options
@click.option("--storage", metavar="PATH|URI", help="Where checkpoints go. Default: the sweep's own folder.")
@click.option("--resume", "choice", flag_value="resume", help="Go on with the experiment's unfinished sweep.")
@click.option("--new", "choice", flag_value="new", help="Start another sweep even if the latest is unfinished.")
@common.home_option
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    trials: int | None,
    time_s: float | None,
    concurrent: int | None,
    max_steps: int | None,
    seed: int | None,
    sets: tuple[str, ...],
    address: str,
    tracking: str | None,
    storage: str | None,
    choice: str | None,
    home: Path,
    as_json: bool,
) -> None:
    """Run the sweep of the experiment in FILE. NAME chooses one where the file holds several.

    When the experiment's latest sweep is unfinished, this asks on a terminal whether to go on with it; elsewhere say
    --resume or --new.
    """
    from tunelab.engine.loading import apply_overrides, load_experiment

    running.check_address(address)
    changes = running.overrides(trials=trials, time_s=time_s, concurrent=concurrent, max_steps=max_steps, seed=seed, sets=sets)
    loaded = load_experiment(file)
    experiment = apply_overrides(loaded.experiment, **changes)
    store = Home(home)
    latest = store.latest(experiment.name)
    if latest is not None and choice != "new" and _decide(latest, choice) == "resume":
        from tunelab.cli import resume as resume_verb

        if changes.keys() & {"max_steps", "seed", "sets"}:
            raise BadInputError("--max-steps, --seed and --set start another sweep: say --new.")
        ctx.invoke(
            resume_verb.command, sweep=latest.path.name, trials=trials, time_s=time_s, concurrent=concurrent,
            address=address, tracking=tracking, code=None, home=home, as_json=as_json,
        )  # fmt: skip
        return
    from tunelab.cli.watch import make_watcher
    from tunelab.engine.ray.trainers import storage_of
    from tunelab.engine.sweeping import Plan, start

    chosen = running.tracking_for(tracking, home, loaded.root)
    settings = common.project_settings()
    with make_watcher() as watcher:
        watcher.say(f"Ray: {address}. Tracking: {chosen.describe()}. Sweeps: {home}/")
        plan = Plan(
            experiment=experiment,
            root=loaded.root,
            home=store,
            tracking=chosen,
            address=address,
            storage=storage or settings.get("storage") or storage_of(experiment.trainer),
            module=loaded.module,
            file=_relative(loaded.file, loaded.root),
            variable=loaded.variable,
            text=loaded.text,
            overrides=changes,
            watcher=watcher,
        )
        done = start(plan)
    ctx.exit(running.tell(done, as_json))


def _decide(latest: SweepFolder, choice: str | None) -> str:
    """`resume` or `new`, asking when the latest sweep is unfinished."""
    state = latest.load()
    running_now = common.is_running(latest)
    if running_now and choice is None:
        raise UnfinishedSweepError(
            f"{latest.path.name} of this experiment is running now. Watch it with: tunelab show {latest.path.name}\n"
            "To run another beside it, say --new."
        )
    if not state.cut_short and choice is None and not running_now:
        return "new"
    if choice is not None:
        return choice
    told = f"{latest.path.name} of this experiment is unfinished ({_progress(state)})."
    if not sys.stdin.isatty():
        raise UnfinishedSweepError(f"{told} Say which:  --resume   or   --new  (starts another sweep)")
    return "resume" if click.confirm(f"{told} Go on with it?", default=True, err=True) else "new"


def _progress(state: SweepState) -> str:
    return f"{common.ended(state)} of {state.budget['trials']}"


def _relative(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
