"""What is seen while a sweep runs: a table that is redrawn on a terminal, one line an event elsewhere. All on stderr.

Both have the interface that the engine calls: `changed(state, event)` after each event, and `say(text)`. They are called
in the driver's thread, between reports, so `changed` only takes notes, and drawing is done at most four times a second.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

from tunelab.analysis import text
from tunelab.cli.common import aligned
from tunelab.cli.show import headline, remark, trial_row
from tunelab.core.select import shown_report
from tunelab.core.trial import Status, Trial, rank_key
from tunelab.journal.events import Event
from tunelab.journal.state import SweepState

INTERVAL_S = 0.25
RECENT = 200  # ended trials that may be shown
ESTIMATE_FROM = 2  # ended trials


def make_watcher(stream: TextIO = sys.stderr, *, verbose: bool = False) -> LiveTable | PlainLines:
    """A live table where `stream` is a terminal, else lines.

    Args:
        stream: Where to draw.
        verbose: Whether lines are also written for reports.
    """
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return LiveTable(stream)
    return PlainLines(stream, verbose=verbose)


class View:
    """What a sweep's watcher shows, kept up to date event by event at a cost that does not grow with the number of trials."""

    def __init__(self) -> None:
        self.running: dict[int, None] = {}  # in order of their start; those that wait for a retry too
        self.interrupted: dict[int, None] = {}
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.stopped = self.failed = self.infeasible = 0
        self._ended: dict[int, Status] = {}
        self._changed: set[int] = set()
        self._best: dict[int, tuple[float, int, str]] = {}  # trial -> (rank key, its number, text)
        self._top: tuple[float, int, str] | None = None
        self._seen_any = False

    @property
    def ended(self) -> int:
        """Trials that have ended, of those that count against the budget."""
        return len(self._ended) - self.infeasible

    def take(self, state: SweepState, event: Event) -> None:
        """Note what an event changed."""
        if not self._seen_any or event.kind == "session_started":  # a resumed sweep has a past
            self._seen_any = True
            for trial in state.trials.values():
                self._note(trial)
        elif event.trial is not None:
            self._note(state.trials[event.trial])

    def best(self, state: SweepState) -> str:
        """`best 0011 0.9756@14`, or nothing before the first finite value."""
        for number in self._changed:
            self._rank(state, state.trials[number])
        self._changed.clear()
        if self._top is None and self._best:
            self._top = min(self._best.values())
        return "" if self._top is None else self._top[2]

    def _rank(self, state: SweepState, trial: Trial) -> None:
        if self._top is not None and self._top[1] == trial.number:
            self._top = None  # it may have become worse, so all are looked at again
        report = None if trial.status in (Status.FAILED, Status.INFEASIBLE) else shown_report(trial, state.mode)
        if report is None:
            self._best.pop(trial.number, None)
            return
        shown = f"best {trial.id} {text.metric_text(report.value)}@{text.step_text(report.step)}"
        entry = self._best[trial.number] = (rank_key(report.value, state.mode), trial.number, shown)
        if self._top is not None:
            self._top = min(self._top, entry)

    def _note(self, trial: Trial) -> None:
        self._changed.add(trial.number)
        if trial.status in (Status.RUNNING, Status.RETRYING):
            self.running[trial.number] = None
        else:
            self.running.pop(trial.number, None)
        if trial.status is Status.INTERRUPTED:
            self.interrupted[trial.number] = None
        else:
            self.interrupted.pop(trial.number, None)
        if trial.status.ended and trial.number not in self._ended:
            self._ended[trial.number] = trial.status
            self.recent.append(trial.number)
            self._count(trial.status, 1)
        elif not trial.status.ended and trial.number in self._ended:  # reopened
            self._count(self._ended.pop(trial.number), -1)
            if trial.number in self.recent:
                self.recent.remove(trial.number)

    def _count(self, status: Status, change: int) -> None:
        self.infeasible += change * (status is Status.INFEASIBLE)
        self.stopped += change * (status is Status.STOPPED)
        self.failed += change * (status is Status.FAILED)


def estimate_left_s(elapsed_s: float, ended: int, trials: int, time_s: float | None) -> float | None:
    """Seconds that the sweep will still take, or None while that cannot be told.

    From the time that ended trials took on average, and never more than is left of the time budget.
    """
    if ended < ESTIMATE_FROM:
        return None
    left = elapsed_s / ended * max(0, trials - ended)
    return left if time_s is None else min(left, max(0.0, time_s - elapsed_s))


def footer(view: View, state: SweepState, now: float) -> str:
    """`best 0011 0.9756@14 | 13 of 32 ended, 9 stopped early | 1:38 gone, about 2:20 left`."""
    trials = state.budget["trials"]
    ended = [f"{view.ended} of {trials} ended"]
    ended += [f"{view.stopped} stopped early"] if view.stopped else []
    ended += [f"{view.failed} failed"] if view.failed else []
    ended += [f"{view.infeasible} infeasible"] if view.infeasible else []
    runs = bool(state.sessions) and state.sessions[-1].ended_at is None
    gone = state.elapsed_s + (max(0.0, now - state.last_at) if runs else 0.0)
    times = f"{text.span_text(gone)} gone"
    left = estimate_left_s(gone, view.ended, trials, state.budget.get("time_s"))
    if runs and left is not None and view.ended < trials:
        times += f", about {text.span_text(left)} left"
    return " | ".join(part for part in (view.best(state), ", ".join(ended), times) if part)


def table(view: View, state: SweepState, height: int) -> list[str]:
    """Lines of the running trials, then of the interrupted and the latest ended ones that fit, in order of their numbers."""
    names = text.varied(state)
    room = max(1, height)
    shown = list(view.running)[-room:]
    for others in (view.interrupted, view.recent):
        left = room - len(shown)
        if left > 0:
            shown += list(others)[-left:]
    rows = [trial_row(state, state.trials[number], names) for number in sorted(shown)]
    header = ["trial", "state", text.axis(state), text.metric(state), "best@", *names, ""]
    return aligned([header, *rows])


def cut(line: str, width: int) -> str:
    """The line, or as much of it as fits with an ellipsis."""
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


class LiveTable:
    """A table at the bottom of the terminal; what is said, or printed by others, scrolls above it."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        self._stream, self._clock = stream, clock
        self._view, self._state, self._drawn_at = View(), SweepState(), 0.0
        self._live: Any = None
        self._headed = False

    def __enter__(self) -> LiveTable:
        from rich.console import Console
        from rich.live import Live

        # What others print to stdout is data and must stay there, unless that is the same terminal.
        shared = sys.stdout.isatty()
        console = Console(file=self._stream, highlight=False)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=shared, redirect_stderr=True)
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._live is not None:
            self._draw(final=kind is None)
            self._live.stop()
            self._live = None

    def changed(self, state: SweepState, event: Event) -> None:
        """Note what happened, and redraw when the last drawing is a quarter of a second old."""
        self._state = state
        self._view.take(state, event)
        if self._live is None:
            return
        if not self._headed:
            self._headed = True
            self._print(headline(state))
        if self._clock() - self._drawn_at >= INTERVAL_S:
            self._draw()

    def say(self, text: str) -> None:
        """Write a sentence above the table."""
        if self._live is None:
            self._stream.write(f"{text}\n")
        else:
            self._print(text)

    def _print(self, line: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(line))

    def _draw(self, *, final: bool = False) -> None:
        """Draw the table; the final one has no footer, since a summary follows."""
        from rich.text import Text

        self._drawn_at = self._clock()
        if not self._state.trials:
            return
        width, height = self._live.console.size
        lines = table(self._view, self._state, max(3, height - 4))
        lines += [] if final else [footer(self._view, self._state, self._clock())]
        drawn = [cut(line, width - 1) for line in lines]
        self._live.update(Text("\n".join(drawn), no_wrap=True), refresh=True)


class PlainLines:
    """A line when a trial starts and when it ends, for logs and pipes."""

    def __init__(self, stream: TextIO, *, verbose: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._stream, self._verbose, self._clock = stream, verbose, clock
        self._view = View()
        self._headed = False
        self._held: tuple[int, str] | None = None  # a failed attempt's trial and line, until it is known what follows

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._release()
        self._stream.flush()

    def changed(self, state: SweepState, event: Event) -> None:
        """Write the line that the event is worth, if any."""
        self._view.take(state, event)
        if self._held and event.kind == "finished" and event.trial == self._held[0]:
            self._held = None  # this event's line says the same
        self._release()
        if not self._headed and event.kind != "amended":  # the session that follows it brings its budget
            self._headed = True
            self.say(headline(state))
        if event.trial is not None and (line := self._line(state, event, state.trials[event.trial])):
            if event.kind == "attempt_ended" and event.data["outcome"] == "failed":
                self._held = (event.trial, line)
            else:
                self.say(line)

    def say(self, text: str) -> None:
        """Write a line."""
        self._release()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def _release(self) -> None:
        if self._held:
            (_, line), self._held = self._held, None
            self.say(line)

    def _line(self, state: SweepState, event: Event, trial: Trial) -> str | None:
        if event.kind == "started":
            again = f" again, attempt {trial.attempt}" if trial.attempt > 1 else ""
            from_step = event.data["from_step"]
            origin = "" if from_step is None else f", from {text.axis(state)} {text.step_text(from_step)}"
            baseline = "baseline; " if trial.origin == "baseline" else ""
            config = text.config_text(trial.config, text.varied(state)) or f"seed {trial.seed}"  # a rerun varies nothing else
            return f"{trial.id} starts{again}{origin}: {baseline}{config}"
        if event.kind == "finished":
            is_last = not self._view.running and self._view.ended >= state.budget["trials"]  # a summary follows
            return _ended(state, trial) + ("" if is_last else f" | {footer(self._view, state, self._clock())}")
        if event.kind == "attempt_ended" and not trial.status.ended and event.data["outcome"] in ("failed", "interrupted"):
            why = ": ".join(part for part in (event.data["failure"] or event.data["outcome"], event.data["message"]) if part)
            return f"{trial.id} attempt {trial.attempt} {why}"
        if event.kind == "reported" and self._verbose:
            value, step = text.metric_text(event.data["value"]), text.step_text(event.data["step"])
            return f"{trial.id} {text.axis(state)} {step}: {text.metric(state)} {value}"
        return None


def _ended(state: SweepState, trial: Trial) -> str:
    last, why = trial.last, remark(trial)
    at = "" if last is None else f" at {text.axis(state)} {text.step_text(last.step)}: {text.metric(state)} "
    value = "" if last is None else text.metric_text(last.value)
    return f"{trial.id} {trial.status.value}{at}{value}" + (f" ({why})" if why else "")
