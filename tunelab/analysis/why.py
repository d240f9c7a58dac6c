"""Why a trial came to be, what happened to it, and why it ended: told from the journal's events alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tunelab.analysis import text
from tunelab.core.failures import RULES, Failure
from tunelab.core.select import best_report
from tunelab.core.trial import Attempt, Status, Trial
from tunelab.errors import UnknownNameError
from tunelab.journal.events import Event
from tunelab.journal.state import SweepState, collections_paused

LAST_LINES = 5  # of a traceback


@dataclass
class _Said:
    """What an attempt reported, the recomputed and the lost included: more than the trial's record keeps."""

    steps: list[float] = field(default_factory=list)
    repeated: int = 0  # of them, how many an earlier attempt had reported before


def why(events: Iterable[Event], number: int) -> list[str]:
    """The trial's story, a line each.

    Args:
        events: The whole journal, in order.
        number: The trial.

    Raises:
        UnknownNameError: The sweep has no such trial.
    """
    state, said, furthest = SweepState(), dict[int, _Said](), float("-inf")
    with collections_paused():
        for event in events:
            state.apply(event)
            if event.trial == number and event.kind == "reported":
                entry = said.setdefault(event.data["attempt"], _Said())
                entry.steps.append(event.data["step"])
                entry.repeated += event.data["step"] <= furthest
                furthest = max(furthest, event.data["step"])
    if number not in state.trials:
        known = f"0000 to {max(state.trials):04d}" if state.trials else "none yet"
        raise UnknownNameError(f"{state.sweep} has no trial {number:04d}. It has {known}.")
    return list(_lines(state, state.trials[number], said))


def _lines(state: SweepState, trial: Trial, said: dict[int, _Said]) -> Iterator[str]:
    word = text.axis(state)
    rows: list[tuple[str, str]] = [("proposed", _proposal(state, trial))]
    rows += [("since then", line) for line in _amendments(state, trial)]
    for attempt in trial.attempts:
        if attempt.number - 1 in trial.reopened:
            rows.append(("reopened", "by `tunelab retry`: retries count anew"))
        rows.append((f"attempt {attempt.number}", _attempt(attempt, said.get(attempt.number, _Said()), word, trial)))
    by_step = {report.step: report.value for report in trial.reports}
    for decided in trial.decisions:
        value = f"{text.metric_text(by_step[decided.step])}, " if decided.step in by_step else ""
        rows.append((f"{word} {text.step_text(decided.step)}", f"{decided.action:<9}  {value}{decided.reason}"))
    if trial.reopened and trial.reopened[-1] == trial.attempt:
        rows.append(("reopened", "by `tunelab retry`: retries count anew"))
    rows.append(("now" if not trial.status.ended else "ended", _end(state, trial)))
    best = best_report(trial, state.mode)
    if best is not None:
        rows.append(
            ("best", f"{text.metric_text(best.value)} at {word} {text.step_text(best.step)}, checkpoint {best.checkpoint}")
        )
    width = max(len(label) for label, _ in rows)
    yield from (f"{label:<{width}}  {rest}" for label, rest in rows)
    if trial.status is Status.FAILED and trial.attempts and trial.attempts[-1].details.strip():
        lines = trial.attempts[-1].details.rstrip().splitlines()
        yield "the end of the traceback:" if len(lines) > LAST_LINES else "traceback:"
        yield from (f"  {line}" for line in lines[-LAST_LINES:])


def _proposal(state: SweepState, trial: Trial) -> str:
    origin = "the baseline" if trial.origin == "baseline" else f"{trial.origin}, {trial.note}" if trial.note else trial.origin
    return f"{origin}; {text.config_text(trial.config, text.parameters(state))}; seed {trial.seed}"


def _amendments(state: SweepState, trial: Trial) -> Iterator[str]:
    """What the experiment was amended in after the trial had been proposed."""
    for amendment in state.amendments:
        if amendment.forced and trial.number < amendment.trials:
            yield f"{text.amendment_text(amendment)}: {'; '.join(amendment.changes)}"


def _attempt(attempt: Attempt, said: _Said, word: str, trial: Trial) -> str:
    parts = []
    if attempt.from_step is not None:
        parts.append(f"from the checkpoint of {word} {text.step_text(attempt.from_step)}")
    elif attempt.number > 1:
        parts.append("from the start, there was no checkpoint")
    parts.append(text.plural(word, said.steps) if said.steps else "no report")
    parts.append(_outcome(attempt, trial))
    line = ", ".join(part for part in parts if part)
    if attempt.number > 1 and said.steps:
        count = said.repeated
        line += f"; {count or 'no'} {word}{'' if count < 2 else 's'} recomputed"
    return line


def _outcome(attempt: Attempt, trial: Trial) -> str:
    if attempt.outcome is None:
        return "running"
    if attempt.outcome in ("completed", "stopped"):
        return attempt.outcome
    how = f"then {attempt.failure}" if attempt.failure else f"then {attempt.outcome}"
    line = f"{how}: {attempt.message}" if attempt.message else how
    if attempt.number in trial.reopened:
        return line
    if attempt.failure and (attempt is not trial.attempts[-1] or trial.status is Status.RETRYING):
        rule = RULES[Failure(attempt.failure)]
        how = "retried alone" if rule.alone else "retried, one of max_failures" if rule.retries is None else "free retry"
        line += f" ({how})"
    return line


def _end(state: SweepState, trial: Trial) -> str:
    if trial.status is Status.PROPOSED:
        return "proposed, not started yet"
    line = trial.status.value
    if trial.last is not None:
        line += f" at {text.axis(state)} {text.step_text(trial.last.step)}"
    told = [decided.reason for decided in trial.decisions[-1:]] + [attempt.message for attempt in trial.attempts[-1:]]
    is_told = any(reason and reason in trial.reason for reason in told)  # in a line above
    return line if is_told or not trial.reason else f"{line}: {trial.reason}"
