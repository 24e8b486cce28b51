"""``NamedTuple`` of typing without the import of typing, which takes half the time of starting Python."""

from __future__ import annotations

__all__ = ["NamedTuple"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NamedTuple
else:
    from collections import namedtuple

    class _NamedTupleMeta(type):
        """Metaclass that converts a class with annotated fields into a named tuple class."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.pop("__annotations__")
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body.pop("__module__"))  # noqa: PYI024
            for key, value in body.items():
                setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_NamedTupleMeta):
        """Base class for named tuples with annotated fields."""
