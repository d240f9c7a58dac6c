"""No early stopping: every trial runs to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tunelab.core.experiment import Objective
from tunelab.core.trial import Continue, Decision, Report


@dataclass(frozen=True)
class FIFO:
    """Every trial goes on to its last step."""

    name: ClassVar[str] = "fifo"

    def problems(self) -> list[str]:
        return []

    def judge(self, objective: Objective, last_step: float | None) -> FIFOJudge:
        return FIFOJudge()


class FIFOJudge:
    """Says Continue to every report and asks for no further conversation."""

    def decide(self, report: Report) -> list[Decision]:
        return [Continue(report.trial)]

    def rungs(self) -> dict[float, dict[int, float]]:
        return {}
