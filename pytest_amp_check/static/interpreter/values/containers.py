"""Containers with known items, and unions of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Mapping as Items
from functools import reduce

from ....protocol.events import GradientAccess
from ..conditions import Formula
from ..dtypes import NO_DTYPE_INFO, DtypeInfo, join
from .tensors import TensorValue
from .value import NO_CONSTANT, Aggregate, Const, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: Limits of the structural identity of containers: nesting depth, and items of one container. Larger containers are
#: never equal.
MAX_KEY_DEPTH, MAX_KEY_ITEMS = 3, 16


class SequenceValue(Aggregate):
    """List or tuple with known items; ``is_open`` if there may be more items.

    ``may_grow`` says that a loop adds the first items, so that the list is empty only in the first iteration.
    """

    kind = "sequence"
    is_relevant = True

    __slots__ = ("is_open", "items", "may_grow")

    def __init__(self, items: list[Value], *, is_open: bool = False) -> None:
        super().__init__()
        self.items = items
        self.is_open = is_open
        self.may_grow = False

    @property
    def gradient_reads(self) -> tuple[GradientAccess, ...]:  # type: ignore[override]
        return tuple(reading for item in self.items for reading in item.gradient_reads)

    def truth_condition(self) -> Formula | None:
        return True if self.items else None if self.is_open or self.may_grow else False

    def item_at(self, index: Value) -> Value | None:
        position, size = index.value, len(self.items)
        if isinstance(position, int) and -size <= position < size:
            return self.items[position]
        return self.items[0] if size == 1 else None

    def loop_element(self) -> Value | None:
        if not self.items or isinstance(self.items[0], Const):
            return None
        tensors = [item for item in self.items if isinstance(item, TensorValue)]
        if len(tensors) == len(self.items):
            merged = TensorValue.join(tensors)
            merged.dtype_info = reduce(join, [tensor.dtype_info for tensor in tensors])
            return merged
        return self.items[0] if len(self.items) == 1 else None

    def set_item(self, index: object, value: Value) -> None:
        """Replace the item at a known index. A list that holds itself becomes open instead."""
        if isinstance(index, int) and -len(self.items) <= index < len(self.items) and not self.is_open:
            if _contains(value, self):
                del self.items[index]
                self.is_open = True
            else:
                self.items[index] = value

    def insert_items(self, position: int, values: Iterable[Value]) -> None:
        """Insert values before a position. A list that holds itself becomes open instead."""
        values = list(values)
        added = [value for value in values if not _contains(value, self)]
        self.items[position:position] = added
        self.is_open = self.is_open or len(added) < len(values)

    def append_items(self, values: Iterable[Value]) -> None:
        """Append values. A list that holds itself becomes open instead."""
        self.insert_items(len(self.items), values)

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= MAX_KEY_DEPTH or self.is_open or len(self.items) > MAX_KEY_ITEMS:
            return number(self)
        return (self.kind, *[item.identity_key(number, depth + 1) for item in self.items])

    def varying_loops(self) -> frozenset[int]:
        return self.loops.union(*[item.loops for item in self.items])

    def contained_values(self) -> Iterable[Value]:
        return self.items


class MappingValue(Aggregate):
    """Dict with known items; ``is_open`` if there may be more items.

    ``makes_lists`` stands for a ``defaultdict(list)``: the first use of a key adds an empty list.
    """

    kind = "mapping"
    is_relevant = True

    __slots__ = ("is_open", "items", "makes_lists")

    def __init__(self, items: Items[Any, Value], *, is_open: bool = False, makes_lists: bool = False) -> None:
        super().__init__()
        self.items: dict[object, Value] = dict(items)
        self.is_open = is_open
        self.makes_lists = makes_lists

    def set_item(self, key: object, value: Value) -> None:
        """Store a value under a key. A dict that holds itself becomes open instead."""
        if _contains(value, self):
            self.items.pop(key, None)
            self.is_open = True
        else:
            self.items[key] = value

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= MAX_KEY_DEPTH or self.is_open or len(self.items) > MAX_KEY_ITEMS:
            return number(self)
        return (self.kind, *[(key, item.identity_key(number, depth + 1)) for key, item in self.items.items()])

    def truth_condition(self) -> Formula | None:
        # A later iteration of a loop may add entries to an empty dict.
        return True if self.items else None

    def item_at(self, index: Value) -> Value | None:
        if self.makes_lists and index.value is not NO_CONSTANT:
            return self.items.setdefault(index.value, SequenceValue([]))
        return self.items.get(index.value)

    def contained_values(self) -> Iterable[Value]:
        return self.items.values()


class UnionValue(Aggregate):
    """One of several values, each under a condition. The conditions exclude one another."""

    kind = "choice"
    is_relevant = True

    __slots__ = ("options",)

    def __init__(self, options: list[tuple[Formula, Value]]) -> None:
        super().__init__()
        self.options = options

    @property
    def gradient_reads(self) -> tuple[GradientAccess, ...]:  # type: ignore[override]
        return tuple(reading for _, option in self.options for reading in option.gradient_reads)

    def identity_key(self, number: Callable[[Value], int], depth: int = 0) -> object:
        if depth >= MAX_KEY_DEPTH:
            return number(self)
        return (self.kind, *[(formula, option.identity_key(number, depth + 1)) for formula, option in self.options])

    def alternatives(self) -> list[Value]:
        return [option for _, option in self.options]

    def contained_values(self) -> Iterable[Value]:
        return self.alternatives()

    @property
    def dtype_info(self) -> DtypeInfo:  # type: ignore[override]
        # None has no dtype: where the value is used as a tensor, it is another option.
        return reduce(
            join, [each.dtype_info for each in self.alternatives() if each.value is not None] or [NO_DTYPE_INFO]
        )


def merge_into(mapping: MappingValue, value: Value) -> None:
    """Apply ``mapping.update(value)``; ``value`` may be a dict, a list of pairs or an unknown value."""
    inner = value.is_open if isinstance(value, (MappingValue, SequenceValue)) else True
    if inner:
        mapping.is_open = True
        # An unknown value may hold any key, so a constant of the mapping is only a default.
        mapping.items = {key: item for key, item in mapping.items.items() if not isinstance(item, Const)}
    if isinstance(value, MappingValue):
        for key, item in list(value.items.items()):
            mapping.set_item(key, item)
        return
    pairs = value.items if isinstance(value, SequenceValue) else [value]
    for pair in pairs:
        if isinstance(pair, SequenceValue) and len(pair.items) == 2 and isinstance(pair.items[0], Const):
            mapping.set_item(pair.items[0].value, pair.items[1])
        else:
            mapping.is_open = True


def _contains(value: Value, container: Value) -> bool:
    """Return True if a value is a container, or contains the container at any depth."""
    if not isinstance(value, Aggregate):
        return False
    seen: set[int] = set()
    stack: list[Value] = [value]
    while stack:
        each = stack.pop()
        if each is container:
            return True
        if isinstance(each, Aggregate) and id(each) not in seen:
            seen.add(id(each))
            stack.extend(each.contained_values())
    return False
