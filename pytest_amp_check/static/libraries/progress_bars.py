"""Progress bars: iterables that yield the items of their first argument in the same order."""

from __future__ import annotations

import ast

from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.containers import SequenceValue
from ..interpreter.values.definitions import Args, ExternalName, GeneratorValue, Keywords
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.value import Value, iterable_kind_of

_BARS = (
    *(f"tqdm.{name}tqdm" for name in ("", "std.", "auto.", "autonotebook.", "notebook.", "asyncio.", "rich.")),
    "tqdm.tqdm_notebook",
    "rich.progress.track",
    "alive_progress.alive_it",
    "fastprogress.progress_bar",
    "fastprogress.fastprogress.progress_bar",
    "progressbar.progressbar",
)
#: Progress bars over ``range``.
_RANGES = tuple(f"tqdm.{name}trange" for name in ("", "std.", "auto.", "autonotebook.", "notebook."))
#: Kinds of values with known items.
_ITERABLES = (SequenceValue, GeneratorValue, ParamsValue)


def _iterate_first(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return the iterable of a progress bar, or None if only the loop shows what it yields."""
    iterable = args[0] if args else keywords.get("iterable")
    if iterable is None:
        return None
    is_known = isinstance(iterable, _ITERABLES) or bool(iterable_kind_of(iterable)) or iterable.microbatches
    return iterable if is_known else None


def _iterate_range(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    return interp.call_value(ExternalName("builtins.range"), args, {}, node)


def register(handlers: HandlerTable) -> None:
    handlers.named_functions.update(dict.fromkeys(_BARS, _iterate_first))
    handlers.named_functions.update(dict.fromkeys(_RANGES, _iterate_range))
