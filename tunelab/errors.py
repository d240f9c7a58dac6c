"""Every deliberate error.

    TunelabError                     shown to the user as its message, without a traceback
    |-- BadInputError                exit status 2: what was asked for cannot be done as asked
    |   |-- InvalidExperimentError   a part of an Experiment breaks its rules; lists all problems at once
    |   |-- ExperimentFileError      the file cannot be found, loaded, or holds no (or several) experiments
    |   |-- UnknownNameError         no such sweep, trial, parameter, searcher ...; suggests the nearest
    |   |-- UnfinishedSweepError     the latest sweep is unfinished: say --resume or --new
    |   |-- ResourcesError           the cluster can never place what the experiment asks for
    |   `-- UnsupportedVersionError  an installed package is outside the range tunelab was tested with
    |-- JournalError                 the journal cannot be read or written
    |   |-- DiskFullError            the disk is full; the sweep can be resumed once there is room
    |   `-- SweepLockedError         another driver runs this sweep
    |-- NoCheckpointError            nothing to export: no trial with a kept checkpoint
    |-- WorldSizeError               in a train loop: its framework trains with another number of processes than workers
    |-- MissingDependencyError       an optional package is needed; names the extra to install
    `-- ExportMismatchError          the exported model does not reproduce the checkpoint's predictions
    Infeasible                       raised by a train loop: this configuration cannot work (not a failure)

Errors travel between processes, so each one pickles: all state is in `args`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TunelabError(Exception):
    """Base of all deliberate errors. `str(error)` is a complete message for the user."""

    exit_status = 1


class BadInputError(TunelabError):
    """What was asked for cannot be done as asked; nothing has been started."""

    exit_status = 2


class InvalidExperimentError(BadInputError):
    """A part of an experiment breaks its rules.

    Args:
        subject: What is wrong, such as `Experiment 'digits-mlp'`.
        problems: One sentence each: the rule, the value, what is allowed.
    """

    def __init__(self, subject: str, problems: Iterable[str]) -> None:
        self.subject, self.problems = subject, tuple(problems)
        super().__init__(self.subject, self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.subject}: {self.problems[0]}"
        return "\n".join([f"{self.subject} has {len(self.problems)} problems:", *(f"  - {p}" for p in self.problems)])


class ExperimentFileError(BadInputError):
    """The experiment file cannot be found or loaded, or holds no or several experiments."""


class UnknownNameError(BadInputError):
    """A name that is not among the known ones."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """`No searcher is called 'tpee'. Did you mean 'tpe'? Known: random, tpe.`"""
        known = list(known)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        listed = f" Known: {', '.join(known)}." if known else " There are none yet."
        return cls(f"No {kind} is called '{name}'.{hint}{listed}")


class UnfinishedSweepError(BadInputError):
    """The experiment's latest sweep is unfinished, so it must be said whether to resume it or to start anew."""


class ResourcesError(BadInputError):
    """The cluster can never place what the experiment asks for."""


class UnsupportedVersionError(BadInputError):
    """An installed package is outside the range that tunelab was tested with."""


class JournalError(TunelabError):
    """The journal cannot be read or written."""


class DiskFullError(JournalError):
    """The disk of the journal, or of a sweep's folder, is full. What was recorded is whole, and the sweep can be resumed."""


class SweepLockedError(JournalError):
    """Another driver runs this sweep."""

    exit_status = 2


class NoCheckpointError(TunelabError):
    """No trial has a kept checkpoint, so there is nothing to export."""


class WorldSizeError(TunelabError):
    """A train loop's framework has joined another number of processes than the trial has workers.

    Args:
        framework: Its name.
        joined: How many processes it trains with.
        workers: How many workers the trial has.
    """

    def __init__(self, framework: str, joined: int, workers: int) -> None:
        self.framework, self.joined, self.workers = framework, joined, workers
        super().__init__(framework, joined, workers)

    def __str__(self) -> str:
        what = "each worker trains a copy of its own" if self.joined == 1 else "some workers train without the others"
        return f"The trial has {self.workers} workers, but {self.framework} has joined {self.joined} of them: {what}."


class MissingDependencyError(TunelabError):
    """An optional package is needed; the message names the extra that installs it."""

    exit_status = 2


class ExportMismatchError(TunelabError):
    """The exported model does not reproduce the predictions of its checkpoint."""


class Infeasible(Exception):
    """Raise this in a train loop when the configuration cannot work. The trial ends at once and is not retried."""
