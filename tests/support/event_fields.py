"""The kinds of events, the fields that they declare, and the attributes of a program."""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator
from typing import Any

from pytest_amp_check.protocol.event_graph import Program
from pytest_amp_check.protocol.events import Event, EventKind
from pytest_amp_check.protocol.frameworks import FRAMEWORKS
from pytest_amp_check.protocol.rules import LABELS
from pytest_amp_check.protocol.tracked_objects import TrackedObject

_FIELDS: dict[EventKind, frozenset[str]] = {}


def every_kind(kind: EventKind = Event) -> Iterator[EventKind]:
    """Yield the kinds of events, without the classes that several kinds have in common."""
    below = kind.__subclasses__()
    if not below:
        yield kind
    for each in below:
        yield from every_kind(each)


def own_fields(kind: type) -> frozenset[str]:
    """Return the fields that a class declares itself."""
    declared: dict[str, str] = vars(kind).get("__annotations__", {})
    return frozenset(name for name, written in declared.items() if not written.startswith("ClassVar"))


def fields_of(kind: EventKind) -> frozenset[str]:
    """Return the fields of a kind, including inherited fields."""
    if kind not in _FIELDS:
        _FIELDS[kind] = frozenset[str]().union(*map(own_fields, kind.__mro__))
    return _FIELDS[kind]


@functools.cache
def message_fields() -> frozenset[str]:
    """Return the fields in the messages and edits of all violations, and in the advice about frameworks."""
    messages = [kind.message for _, kind in LABELS.values()]
    edits = [edit.text for _, kind in LABELS.values() for edit in kind.trace_context.edits]
    advice = [text for framework in FRAMEWORKS.values() for text in framework.advice.values()]
    parsed = (part for text in (*messages, *edits, *advice) for part in string.Formatter().parse(text))
    return frozenset(field for _, field, _, _ in parsed if field)


def set_attributes(owner: Program | TrackedObject, **facts: Any) -> None:
    """Set attributes of a program or of an object. Fail for an attribute that is not declared."""
    groups: list[object] = [owner.attributes]
    if isinstance(owner, Program):
        groups += [owner.attributes.scalers, owner.attributes.training]
    for name, value in facts.items():
        group = next((each for each in groups if hasattr(each, name)), None)
        assert group is not None, f"no attribute {name!r}: declare it in protocol/tracked_objects.py or event_graph.py"
        setattr(group, name, value)
