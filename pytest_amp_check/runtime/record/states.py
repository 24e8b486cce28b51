"""The history of each optimizer's gradients from step to step, and the steps with violations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ...protocol.finding import Finding
from ...protocol.run_checker import Identity

#: Largest number of kept states of one step. A loop through the same states adds no information.
LONGEST = 24
#: Largest number of kept spans of each optimizer (the latest), and of step spans of each violation (the first).
SPANS, FAULTY = 2048, 64

Span = list[Any]
#: The label of a violation, and the event at which the violation is reported.
ViolationKey = tuple[str, Identity]


class GradientHistory:
    """The gradient states of a run in bounded memory. Consecutive equal steps form one span.

    A step is everything since the previous step of the same optimizer. Its last state is the state after the step.
    """

    def __init__(self) -> None:
        self._open_paths: dict[int, list[str]] = {}
        #: Key of an optimizer to its spans: first step, last step, and states.
        self._step_spans: dict[int, deque[Span]] = {}
        #: Violation to the optimizer, the gradient state at the violation, the spans of steps, and the number of steps.
        self._violations: dict[ViolationKey, tuple[int | None, str, list[Span], list[int]]] = {}
        #: Source text of each optimizer at its step.
        self._optimizer_names: dict[int, object] = {}
        #: The number of the current step.
        self.step_number = 0

    def record_state(self, optimizer: int, grads: str) -> None:
        """Record a new state of an optimizer's gradients."""
        states = self._open_paths.setdefault(optimizer, [])
        if len(states) < LONGEST and (not states or states[-1] != grads):
            states.append(grads)

    def record_step(self, optimizer: int, name: object) -> None:
        """Record a step of an optimizer. ``name`` is the optimizer's source text at the step."""
        self._optimizer_names[optimizer] = name
        states = self._open_paths.pop(optimizer, [])
        spans = self._step_spans.setdefault(optimizer, deque(maxlen=SPANS))
        if spans and spans[-1][2] == states:
            spans[-1][1] = self.step_number
        else:
            spans.append([self.step_number, self.step_number, states])
        self.step_number += 1

    def record_violation(self, key: ViolationKey, optimizer: int | None, grads: str) -> None:
        """Record a violation in this state of the gradients; "" if the violation concerns no optimizer."""
        _, _, spans, count = self._violations.setdefault(key, (optimizer, grads, [], [0]))
        if spans and spans[-1][1] == self.step_number:
            return
        count[0] += 1
        if spans and spans[-1][1] == self.step_number - 1:
            spans[-1][1] = self.step_number
        elif len(spans) < FAULTY:
            spans.append([self.step_number, self.step_number])

    def as_dict(self, find_finding: Callable[[ViolationKey], Finding | None]) -> dict[str, Any]:
        """Return plain data.

        "optimizers": the name and the spans of equal steps (first step, last step, states) of each optimizer.
        "violations": for each finding at a step, its code and location, the optimizer's index in that list or None, the
        state of the gradients, the spans of steps (first, last), and the total number of steps.
        """
        keys = list(self._step_spans)
        violations = []
        for key, (optimizer, grads, spans, count) in self._violations.items():
            finding = find_finding(key)
            if finding is not None:
                violations.append(
                    {
                        "code": finding.code,
                        "filename": finding.filename,
                        "row": finding.line,
                        "optimizer": keys.index(optimizer) if optimizer in keys else None,
                        "state": grads,
                        "spans": [list(span) for span in spans],
                        "steps": count[0],
                    }
                )
        optimizers = [
            {
                "name": str(self._optimizer_names[key]) or "the optimizer",
                "spans": [list(span) for span in self._step_spans[key]],
            }
            for key in keys
        ]
        return {"optimizers": optimizers, "violations": violations}
