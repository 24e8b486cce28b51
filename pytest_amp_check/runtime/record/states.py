"""What the gradients of each optimizer went through from step to step, and where faults were committed on that way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ...protocol.finding import Finding
from ...protocol.run_checker import Identity

#: States of one step that are kept: a loop that goes round in them says nothing new.
LONGEST = 24
#: Rows of equal steps that are kept of each optimizer, the latest ones, and rows of steps of each fault, the first.
SPANS, FAULTY = 2048, 64

Span = list[Any]
#: The label of a fault, and the event that is to blame.
Fault = tuple[str, Identity]


class GradientHistory:
    """The states that a chain has moved through, in bounded memory: steps in a row that are alike are one span.

    A step is all that happened since the step before it of the same optimizer, and ends in that which the step made of
    the gradients.
    """

    def __init__(self) -> None:
        self._open_paths: dict[int, list[str]] = {}
        #: Of each optimizer the spans, each the first step, the last, and the states.
        self._step_spans: dict[int, deque[Span]] = {}
        #: Of each fault the optimizer, the state that it was committed in, the spans of steps, and how many there were.
        self._violations: dict[Fault, tuple[int | None, str, list[Span], list[int]]] = {}
        #: What the program calls each optimizer where it steps it.
        self._optimizer_names: dict[int, object] = {}
        #: The step that goes on.
        self.step_number = 0

    def record_state(self, optimizer: int, grads: str) -> None:
        """The gradients of an optimizer are something else than before."""
        states = self._open_paths.setdefault(optimizer, [])
        if len(states) < LONGEST and (not states or states[-1] != grads):
            states.append(grads)

    def record_step(self, optimizer: int, name: object) -> None:
        """A step of an optimizer is made, which the program calls so there."""
        self._optimizer_names[optimizer] = name
        states = self._open_paths.pop(optimizer, [])
        spans = self._step_spans.setdefault(optimizer, deque(maxlen=SPANS))
        if spans and spans[-1][2] == states:
            spans[-1][1] = self.step_number
        else:
            spans.append([self.step_number, self.step_number, states])
        self.step_number += 1

    def record_violation(self, key: Fault, optimizer: int | None, grads: str) -> None:
        """A fault was committed, in this state of the gradients; "" where it is about no optimizer's."""
        _, _, spans, count = self._violations.setdefault(key, (optimizer, grads, [], [0]))
        if spans and spans[-1][1] == self.step_number:
            return
        count[0] += 1
        if spans and spans[-1][1] == self.step_number - 1:
            spans[-1][1] = self.step_number
        elif len(spans) < FAULTY:
            spans.append([self.step_number, self.step_number])

    def as_dict(self, find_finding: Callable[[Fault], Finding | None]) -> dict[str, Any]:
        """Plain data.

        "optimizers": their names, and of each the spans of steps that are alike (first step, last step, states).
        "faults": of each finding that was committed at a step its code and place, the optimizer's number in that list
        or None, the state of the gradients, the spans of steps (first, last), and how many steps these are in all.
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
                "name": str(self._optimizer_names[key] or "") or "the optimizer",
                "spans": [list(span) for span in self._step_spans[key]],
            }
            for key in keys
        ]
        return {"optimizers": optimizers, "faults": violations}
