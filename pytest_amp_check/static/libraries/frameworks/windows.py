"""Accumulation windows of engines: begun microbatches, ends of windows, and divisions without a window."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol import events as e
from ....protocol import frameworks
from ....protocol.fast_namedtuple import NamedTuple
from ....protocol.frameworks import FRAMEWORKS
from ....protocol.sites import Site
from ....protocol.source_text import SourceText, access_text
from ...interpreter.formulas import truth_of
from ...interpreter.interpreter import Interpreter
from ...interpreter.joins import run_branches
from ...interpreter.source_text import receiver_text
from ...interpreter.values.objects import FrameworkEngine
from ...interpreter.values.value import UnknownValue
from ..arguments import literal_value
from ..syntax_queries import receiver_of
from .engines import DEFAULT_STEPS, make_unknown_steps


class Microbatch(NamedTuple):
    """A microbatch that an engine begins: the location, the loops around, and the guards."""

    site: Site
    loops: frozenset[int]
    guards: frozenset[tuple[int, bool]]


class _UncountedBackward(NamedTuple):
    """A backward that divides its loss by the length of a window, in a file that begins no window."""

    node: ast.AST
    loops: frozenset[int]
    guards: frozenset[tuple[int, bool]]


class _UncountedTable(dict[int, _UncountedBackward]):
    """The latest such backward of each engine that a graph uses, by the keys of the tracked objects."""


class MicrobatchTable(dict[int, Microbatch]):
    """The latest microbatch of each engine that a graph uses, by the keys of the tracked objects."""


def check_accumulation_option(
    interp: Interpreter, engine: FrameworkEngine, known: frameworks.Engine, node: ast.AST
) -> None:
    """Report windows of one micro-batch where the code around has an option for their length, and passes it nowhere."""
    function = interp.state.frame.function
    site = engine.tracked_object.site
    if engine.accumulation_steps is not DEFAULT_STEPS or function is None or site is None:
        return
    parameter = known.accumulation.parameter
    receiver = receiver_of(node)
    own = "" if receiver is None else access_text(receiver)
    option = next(
        (
            each
            for each in function.nodes
            if isinstance(each, ast.Attribute) and each.attr == parameter and access_text(each.value) != own
        ),
        None,
    )
    if option is not None:
        callables = FRAMEWORKS[engine.framework].callables
        constructor = next(entry.name for entry in callables if entry.role == frameworks.ENGINE)
        names = {
            "engine": receiver_text(node),
            "call": f"{constructor.rpartition('.')[2]}()",
            "parameter": parameter,
            "option": SourceText(option),
        }
        interp.emit_at(e.Window(site, how="single", names=names))


def make_sync_flag(interp: Interpreter, engine: FrameworkEngine) -> UnknownValue:
    """Return the flag that is true if this microbatch of accelerate ends a window."""
    attributes = FRAMEWORKS[engine.framework].engine.attributes
    flag = next(name for name, meaning in attributes.items() if meaning == frameworks.WINDOW_END)
    begun = interp.graph_data(MicrobatchTable).get(engine.tracked_object.key)
    loops = interp.current_loops() if begun is None else begun.loops
    key = ("sync", engine.tracked_object.key, None if begun is None else loops)
    made = interp.unknown_value(key, f"{engine.tracked_object.name}.{flag}", loops)
    made.loops |= loops
    made.count = made.count._replace(is_counter=True)
    return made


def run_at_window_end(interp: Interpreter, engine: FrameworkEngine, node: ast.AST, act: Callable[[], None]) -> None:
    """Run an action only at the end of a window.

    Optimizers of accelerate neither step nor clear inside a window of ``accumulate``.
    """
    if (
        engine.tracked_object.attributes.accumulates
        and engine.accumulation_steps is not None
        and literal_value(engine.accumulation_steps) != 1
        and not _is_on_other_path(interp, engine)
    ):
        run_branches(interp, truth_of(interp, make_sync_flag(interp, engine), node=node), act, lambda: None)
    else:
        act()


def _is_on_other_path(interp: Interpreter, engine: FrameworkEngine) -> bool:
    """Return True if the current code runs only where the engine's latest microbatch does not."""
    begun = interp.graph_data(MicrobatchTable).get(engine.tracked_object.key)
    active = set(interp.active_guards())
    return begun is not None and any((key, not truth) in active for key, truth in begun.guards)


def note_uncounted(interp: Interpreter, engine: FrameworkEngine, node: ast.AST) -> None:
    """Record a backward that divides by a given number of micro-batches, in files that never count them."""
    known = FRAMEWORKS[engine.framework].engine
    counts = {name for name, effect in known.methods.items() if effect in (frameworks.ACCUMULATE, frameworks.NO_SYNC)}
    counts.update(name for name, value in known.attributes.items() if value == frameworks.WINDOW_END)
    steps = engine.accumulation_steps
    is_hidden = isinstance(steps, UnknownValue) and steps.key == make_unknown_steps(interp, engine.tracked_object).key
    is_given = steps is not DEFAULT_STEPS and not is_hidden and literal_value(steps) not in (1, None)
    modules = [interp.module, interp.state.frame.module, *(each.module for each in interp.active_functions)]
    is_uncounted = all(counts.isdisjoint(module.identifiers) for module in modules)
    if is_given and counts and interp.state.loops and is_uncounted:
        interp.graph_data(_UncountedTable)[engine.tracked_object.key] = _UncountedBackward(
            node, interp.current_loops(), frozenset(interp.active_guards())
        )


def check_uncounted_step(interp: Interpreter, engine: FrameworkEngine) -> None:
    """Report a step of each micro-batch whose gradient was divided by the length of a window."""
    backward = interp.graph_data(_UncountedTable).get(engine.tracked_object.key)
    if backward is None or backward.loops != interp.current_loops():
        return
    # A condition of its own may begin windows by hand.
    if frozenset(interp.active_guards()) <= backward.guards:
        parameter = FRAMEWORKS[engine.framework].engine.accumulation.parameter
        names = {"engine": receiver_text(backward.node), "parameter": parameter}
        interp.emit_at(e.Window(interp.site_of(backward.node), how="unused", names=names))


def is_before_microbatch(interp: Interpreter, engine: FrameworkEngine, node: ast.AST) -> bool:
    """Return True if no microbatch has begun in the current iteration, although the file accumulates.

    The engine then still knows whether the previous microbatch ended a window, and clears if it did.
    """
    known = FRAMEWORKS[engine.framework].engine.methods
    begins = {name for name, effect in known.items() if effect == frameworks.ACCUMULATE}
    begun = interp.graph_data(MicrobatchTable).get(engine.tracked_object.key)
    site = interp.site_of(node)
    has_begun = (
        begun is not None
        and begun.loops <= interp.current_loops()
        # A loop may be interpreted twice.
        and not (begun.site.function == site.function and begun.site.line > site.line)
    )
    return not has_begun and not begins.isdisjoint(interp.state.frame.module.identifiers)
