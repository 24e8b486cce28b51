"""What holds in every test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_amp_check.protocol import events


class Declared(dict[str, Any]):
    """Facts of an event, a thing or a program, none of which is other than declared."""

    def __init__(self, owner: str, allowed: frozenset[str], facts: dict[str, Any]) -> None:
        super().__init__()
        self.owner = owner
        self.allowed = allowed
        self.update(facts)

    def __setitem__(self, name: str, value: Any) -> None:
        assert name in self.allowed, f"{self.owner} has no fact {name!r}: declare it in protocol/events.py"
        super().__setitem__(name, value)

    def update(self, *args: Any, **facts: Any) -> None:
        for name, value in dict(*args, **facts).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]


@pytest.fixture(autouse=True, scope="session")
def facts_are_declared() -> Iterator[None]:
    """Let no reader emit a fact that its kind of event, or its role, does not declare."""
    with pytest.MonkeyPatch.context() as patch:
        event, thing, program = events.Event.__init__, events.Thing.__init__, events.Program.__init__

        def made_event(self: events.Event, kind: events.Kind, *args: Any, **more: Any) -> None:
            event(self, kind, *args, **more)
            self.facts = Declared(f"a {kind} event", kind.facts, self.facts)

        def made_thing(self: events.Thing, *args: Any, **more: Any) -> None:
            thing(self, *args, **more)
            allowed = frozenset(events.THINGS.get(self.role, "").split())
            self.facts = Declared(f"a thing that is a {self.role}", allowed, self.facts)

        def made_program(self: events.Program) -> None:
            program(self)
            self.facts = Declared("a program", frozenset(events.PROGRAM.split()), self.facts)

        patch.setattr(events.Event, "__init__", made_event)
        patch.setattr(events.Thing, "__init__", made_thing)
        patch.setattr(events.Program, "__init__", made_program)
        yield
