"""READ FIRST: the parts of tunelab and the contracts between them.

A searcher *proposes*, a trial *reports*, a scheduler *decides*, a tracker *records*, an exporter *delivers*. The
journal holds all of it in order, and everything that is shown is rebuilt from the journal.

    Experiment --> Searcher.propose --> journal --> engine starts the trial --> ray.train.report
        --> journal --> Scheduler's Judge.decide --> journal --> back to every rank
                 `--> tracker process --> MLflow          `--> Retention deletes what nothing can need

Searchers and schedulers are frozen data with one method each and are pure: no clock, no environment, no hidden
generator, no Ray. That is why a killed sweep, replayed, comes to the same proposals and decisions.

A tracker's contract, `Tracker`, stands in `tunelab/trackers/follow.py`: it speaks of MLflow-like runs, not of trials.

To add one of any family: a file in the family's folder, a line in the table in the folder's `__init__.py`, an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tunelab.core.experiment import Export, Objective
    from tunelab.core.space import Space
    from tunelab.core.trial import Config, Decision, Report, Trial


@runtime_checkable
class Searcher(Protocol):
    """Chooses the next configuration to try."""

    name: ClassVar[str]  # as in the family's table and in messages: "tpe"

    def propose(self, number: int, *, space: Space, objective: Objective, history: Sequence[Trial], seed: int) -> Config | None:
        """The configuration for trial `number`, or None when nothing is left to try.

        Args:
            number: The trial's number within the sweep, from 0.
            space: What may be proposed. The result is contained in it: active parameters only, constraints met.
            objective: Which metric, and whether larger is better.
            history: The sweep's other trials in order of number, in whatever state they are. A completed trial counts
                with its final value; a stopped one with its curve up to that step, never as if completed; one that
                failed by divergence ranks worst; an infeasible one has no value; a running one has only its curve so far.
            seed: The sweep's seed. Draw from a fresh generator seeded by (seed, number).

        Must not keep state between calls, nor assume that trials end in the order in which they started.
        """
        ...


class Judge(Protocol):
    """A scheduler at work on one sweep. Its whole state follows from the reports it was given, in order."""

    def decide(self, report: Report) -> list[Decision]:
        """What follows from a report: one decision about the trial that reported, perhaps more about others.

        Called for each report in the journal's order, also when the journal is replayed. A step may be reported a second
        time, after a restart; a milestone that a trial has passed is not judged again.
        """
        ...

    def rungs(self) -> dict[float, dict[int, float]]:
        """Milestone -> {trial: objective there}; empty for schedulers without milestones."""
        ...


@runtime_checkable
class Scheduler(Protocol):
    """Describes when a trial is not worth going on with."""

    name: ClassVar[str]

    def judge(self, objective: Objective, last_step: float | None) -> Judge:
        """A fresh judge for one sweep.

        Args:
            objective: Which metric, and whether larger is better.
            last_step: The step at which a trial is complete, or None when it is not declared.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What `Framework.save` wrote.

    Args:
        flavor: MLflow flavor that loads it back into the framework: `pytorch`, `transformers`, `python_function`.
        format: How the weights are kept: `pt2`, `safetensors`, `pickle`, `checkpoint`.
        runs_code: Whether loading it unpickles, and so can run any code. False means it loads with pickle switched off.
        note: What the user should know about the choice, one sentence, or "".
    """

    flavor: str
    format: str
    runs_code: bool
    note: str = ""


class Framework(Protocol):
    """All that is special about one framework: how its trainer runs, how a worker is cleaned, how a checkpoint becomes a model.

    Without state of its own, but for what `remember` notes once in a process. `tunelab.frameworks.base.Base` has the defaults.
    """

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]  # top-level modules: a process that has loaded none of them needs no reset
    trainers: ClassVar[tuple[str, ...]]  # class names of the Ray Train trainers that run this framework and no other
    preload: ClassVar[bool]  # whether a worker may import it before Ray Train has set up the process's environment

    def loaded(self) -> bool:
        """Whether this process has imported one of `libraries`."""
        ...

    def refuse(self, trainer: Any) -> list[str]:
        """What one of `trainers` asks for that cannot work, a sentence each, known before anything is started."""
        ...

    def prepare(self, trainer: Any) -> Any:
        """The trainer as it is run: itself, or a copy in which a fault of Ray Train's is cured."""
        ...

    def joined(self) -> int | None:
        """How many processes the framework trains with, as its own backend counts them; None if it has no opinion.

        Called in a worker, on the train loop's thread at its first report, when `loaded`. Another number than the trial's
        workers ends the attempt: each worker would train a copy of its own, in silence.
        """
        ...

    def seed(self, seed: int) -> None:
        """Seed the generators that hold for the whole process. Called before each train loop, when `loaded`."""
        ...

    def remember(self) -> None:
        """Note the process-wide settings that `reset` is to bring back. Called in a worker, before its first trial.

        Must import none of `libraries`: one that is not loaded yet has its own defaults for settings.
        """
        ...

    def reset(self) -> str | None:
        """Put the process back as it was before a trial, or return why it cannot be reused, in a sentence.

        Called in the worker's main thread after a trial, when `loaded`, and before anything else is cleaned up. Covers the
        library's own process-wide state: flags, singletons, process groups, caches. Must take a few milliseconds, import
        nothing heavy, and touch nothing that a trial cannot have changed.
        """
        ...

    def explain(self, error: BaseException) -> str | None:
        """What an error means that the train loop raised, and what to do about it; None if it speaks for itself.

        Only of what the framework cannot do as it was asked, so that trying again is of no use. Must import none of
        `libraries`: the error is explained in another process.
        """
        ...

    def reads(self, checkpoint: Path, hooks: Export | None) -> bool:
        """Whether it can make a model of the checkpoint in this folder, by the hooks or by what the folder says of itself.

        Where the user gives `build` or `load`, that is how the checkpoint is read, whatever it looks like.
        """
        ...

    def load(self, checkpoint: Path, config: Config, hooks: Export) -> Any:
        """The model in `checkpoint`, on the CPU, ready for inference. Never unpickles what the checkpoint holds."""
        ...

    def predict(self, model: Any, inputs: Any, hooks: Export) -> Any:
        """One prediction a row, through `hooks.predict` if there is one.

        `inputs` is a NumPy array, a list of texts, a list of `{"text": ..., "text_pair": ...}`, a DataFrame, or a list of
        anything else. The result is an array, a list or a DataFrame.
        """
        ...

    def save(
        self,
        model: Any,
        folder: Path,
        *,
        inputs: Any,
        outputs: Any,
        hooks: Export,
        checkpoint: Path,
        config: Config,
        title: str,
    ) -> Saved:
        """Write an MLflow model into the empty `folder`, with signature, input example and pinned requirements.

        `mlflow.pyfunc.load_model(folder).predict(inputs)` must give `outputs` where neither tunelab nor the experiment's
        file can be imported. `title` names the origin (`digits-mlp.1/0021`): no local path may end up in the folder.
        """
        ...
