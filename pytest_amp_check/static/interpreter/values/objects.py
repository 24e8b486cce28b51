"""References to tracked objects, and their state dicts."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol.sites import Site
from ....protocol.tracked_objects import TrackedObject
from ..conditions import Formula
from .value import NONE, UnknownValue, Value


class ObjectRef(Value):
    """Reference to a tracked object: a scaler, optimizer, module, autocast context or loss function.

    ``enabled`` is the condition under which a scaler or an autocast is enabled. ``recognized_from`` is the unknown
    value whose use revealed the object; such an object may also be None.
    """

    is_relevant = True

    __slots__ = ("enabled", "kind", "recognized_from", "role", "tracked_object")

    def __init__(
        self, tracked_object: TrackedObject, enabled: Formula = True, recognized_from: UnknownValue | None = None
    ) -> None:
        super().__init__()
        self.kind = self.role = tracked_object.role
        self.tracked_object: TrackedObject = tracked_object
        self.enabled = enabled
        self.recognized_from = recognized_from

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        return (self.kind, self.tracked_object.key)

    def before_recognition(self) -> Value:
        return self.recognized_from or self

    def loop_element(self) -> Value | None:
        """Return the object itself if it stands for several objects."""
        return self if self.tracked_object.attributes.several else None


class UnwrappedOptimizer(ObjectRef):
    """Optimizer taken out of the wrapper of a framework: a step goes through no scaler."""

    __slots__ = ()


class ModuleContainer(ObjectRef):
    """Module that holds other modules in order, such as ``nn.Sequential``."""

    __slots__ = ("items",)

    def __init__(self, tracked_object: TrackedObject, items: list[Value]) -> None:
        super().__init__(tracked_object)
        self.items = items

    def item_at(self, index: Value) -> Value | None:
        position, size = index.value, len(self.items)
        return self.items[position] if isinstance(position, int) and -size <= position < size else None

    def loop_element(self) -> Value | None:
        """Return the module that stands for all items, if all are made by the same code."""
        return self.items[0] if self.items and len(set(map(_maker_of, self.items))) == 1 else None


def _maker_of(value: Value) -> object:
    """Return what all modules have in common that the same code makes: the class, or the makers of the items."""
    if isinstance(value, ModuleContainer):
        return tuple(map(_maker_of, value.items))
    cls = getattr(value, "cls", None)
    return cls or (value.tracked_object.attributes.kind if isinstance(value, ObjectRef) else value)


class FrameworkEngine(ObjectRef):
    """Engine of a framework, which scales, unscales and steps. The tracked object is the engine's scaler.

    framework            key of the framework in the table
    enabled              condition under which the engine scales
    precision            value that decides about the scaling
    accumulation_steps   number by which the engine's backward divides losses, None if backward never divides
    optimizer            the optimizer that the engine wraps
    """

    __slots__ = ("accumulation_steps", "framework", "optimizer", "precision")

    def __init__(
        self,
        framework: str,
        tracked_object: TrackedObject,
        enabled: Formula = True,
        recognized_from: UnknownValue | None = None,
        precision: Value | None = None,
        accumulation_steps: Value | None = None,
        optimizer: Value | None = None,
    ) -> None:
        super().__init__(tracked_object, enabled, recognized_from)
        self.kind = "engine"
        self.framework = framework
        self.precision = precision or NONE
        self.accumulation_steps = accumulation_steps
        self.optimizer = optimizer


class StateDict(Value):
    """Result of the call ``x.state_dict()`` at ``node``."""

    kind = "state"
    is_relevant = True

    __slots__ = ("node", "owner", "site")

    def __init__(self, owner: Value, node: ast.AST, site: Site) -> None:
        super().__init__()
        self.owner = owner
        self.node = node
        self.site = site
