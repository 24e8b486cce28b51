"""Graphs that order events. A program is such a graph for each entry point; a run is a graph with one path.

``static`` builds the graph from source and ``runtime`` builds the sequence of a run.
:func:`pytest_amp_check.protocol.graph_checker.check` handles both alike.
"""

from __future__ import annotations

import copy

from .events.event import Event, FieldValue, Guards
from .fast_namedtuple import NamedTuple
from .sites import Call, Site
from .tracked_objects import ObjectAttributes, TrackedObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping


class WindowTruth(NamedTuple):
    """Truth of a window predicate over the microbatches.

    - ``is_off_by_one``: already true for the first microbatch.
    - ``is_one_short``: counts the first microbatch as the second.
    - ``is_true_once``: true for a single microbatch of each window of three or more.
    - ``trailing_microbatches``: number of microbatches after the last one with a true predicate, and the total number,
      if both are known.
    - ``eventual_truth``: truth for large counters, if the predicate compares a counter.
    - ``eventually_excluded``: truth that is impossible for large counters, if known.
    """

    is_off_by_one: bool = False
    is_one_short: bool = False
    is_true_once: bool = False
    trailing_microbatches: tuple[int, int] | None = None
    eventual_truth: bool | None = None
    eventually_excluded: bool | None = None


_UNKNOWN_TRUTH = WindowTruth()


class Predicate:
    """A condition of a branch. A path assumes the truth once and keeps it.

    ``is_window_predicate``: compares a loop counter (``(i + 1) % k == 0``, ``count == k``). ``window_truth``: truth
    over the microbatches, if known.

    ``checked_optimizers``: optimizers whose gradients are checked to be finite, None for any. ``asks_first_iteration``:
    tests for the first iteration of a loop. ``is_flag``: tests an argument. ``compares_scales``: compares loss scales.
    ``asks_version``: compares the version of a library. ``implications``: triples (truth of this predicate, key of
    another predicate, truth of the other).
    """

    __slots__ = (
        "asks_first_iteration",
        "asks_version",
        "checked_optimizers",
        "compares_scales",
        "implications",
        "is_flag",
        "is_window_predicate",
        "key",
        "other_sites",
        "site",
        "site_guards",
        "text",
        "window_truth",
    )

    def __init__(self, key: int, text: object, site: Site | None) -> None:
        self.key = key
        self.text = text
        self.site = site
        #: Further locations that ask the same question.
        self.other_sites: tuple[Site, ...] = ()
        #: Guards of these locations, with that of ``site`` first. Missing guards are unknown.
        self.site_guards: tuple[Guards, ...] = ()
        self.is_window_predicate = False
        self.window_truth = _UNKNOWN_TRUTH
        self.is_flag = False
        self.checked_optimizers: frozenset[int] | None = frozenset()
        self.compares_scales = False
        self.asks_first_iteration = False
        self.asks_version = False
        self.implications: list[tuple[bool, int, bool]] = []

    def add_site(self, site: Site, guards: Guards) -> None:
        """Add a location that asks the same question, unless the location is known."""
        known = (self.site, *self.other_sites)
        if not any(each is not None and each.call_key == site.call_key for each in known):
            self.other_sites = (*self.other_sites, site)
            self.site_guards = (*(self.site_guards or ((),)), guards)

    def find_site(self, event: Site, answers: Mapping[int, bool]) -> Site | None:
        """Return the location that asks the question for an event: the last before it in its function, if any.

        A location under other answers than those of the path is not on the path, unless an earlier iteration gave the
        other answers.
        """
        sites = (self.site, *self.other_sites)
        guards = (*self.site_guards, *[()] * (len(sites) - len(self.site_guards)))
        on_path = [
            site
            for site, asked in zip(sites, guards, strict=True)
            if site is not None and all(answers.get(key, truth) is truth for key, truth in asked)
        ] or [site for site in sites if site is not None]
        near = [site for site in on_path if (site.path, site.function) == (event.path, event.function)]
        before = [site for site in near if site.line <= event.line]
        return max(before or near, key=lambda site: site.line) if near else next(iter(on_path), None)


class Node:
    """A point of the graph: at most one event, the predicates that become unknown, and the outgoing edges.

    ``edges`` are triples (target node, key of a predicate or -1, truth required for the edge). ``skip_statement`` is
    the statement that skips the rest of an iteration from here, as text, and the location.
    """

    __slots__ = ("edges", "event", "forgotten_predicates", "skip_statement")

    def __init__(self, event: Event | None = None) -> None:
        self.event = event
        self.forgotten_predicates = 0  # bit set of predicate keys
        self.skip_statement: tuple[str, Site] | None = None
        self.edges: list[tuple[int, int, bool]] = []


class Graph:
    """Events in the possible orders of execution. Node 0 is the entry.

    ``entry_point`` is the path and line of the analyzed function, line 0 for a module body. ``was_widened`` is True if
    states were joined for the check, so a violation may be missed. ``is_guessed`` is True if the class of an object is
    known only by the methods that the function calls.
    """

    __slots__ = ("entry_point", "is_guessed", "loops", "name", "nodes", "predicates", "was_widened")

    def __init__(self, name: str, entry_point: tuple[str, int] = ("", 0)) -> None:
        self.name = name
        self.entry_point = entry_point
        self.is_guessed = False
        self.was_widened = False
        self.nodes: list[Node] = []
        self.predicates: list[Predicate] = []
        #: Source text and location of the head of each loop, by key.
        self.loops: dict[int, tuple[object, Site]] = {}


class ProgramScalers:
    """Properties of the scalers of a program or run."""

    def __init__(self) -> None:
        #: Scalers that scale a loss and whose state the program must save.
        self.live_scalers: list[TrackedObject] = []
        #: Scalers with a step and no update in the whole program.
        self.without_update: frozenset[int] = frozenset()
        #: Names of scalers that are recreated again and again.
        self.recreated_names: set[str] = set()
        #: Region dtypes of the scaled losses.
        self.loss_dtypes: set[str] = set()
        #: Some code scales a loss that other code runs backward.
        self.splits_scaling = False
        #: apex multiplies every loss by a constant, so apex has no state that a resumed run needs.
        self.has_fixed_apex_scale = False


class ProgramTraining:
    """Modules that the optimizers of a program or run train."""

    def __init__(self) -> None:
        self.trained_modules: set[int] = set()
        #: Those that a live scaler steps, None if scalers and optimizers are not distinguished.
        self.scaled_modules: set[int] | None = None
        #: Those that only optimizers of unknown classes train. Such an optimizer may keep float32 copies.
        self.trained_by_unknown: set[int] = set()
        #: Calls that run backward a loss of one module alone, as far as the code shows.
        self.backwards_of_sole_modules: set[Call] = set()
        #: Keys of modules to the answers to predicates (key, truth) under each of which the module is frozen.
        self.frozen_under: dict[int, frozenset[tuple[int, bool]]] = {}
        #: Some code runs the loss of unknown modules backward, and freezes modules.
        self.freezes_unknown = False


class ProgramAttributes:
    """Properties of a whole program or run, for the rules that check a whole program."""

    def __init__(self) -> None:
        self.scalers = ProgramScalers()
        self.training = ProgramTraining()
        #: The program, or code that may run it, enters autocast.
        self.enters_autocast = True
        #: Another part of the program averages gradients over microbatches.
        self.averaged = False
        #: A code block of a document.
        self.fragment = False
        #: A Trainer of Lightning runs in float16.
        self.lightning16 = False
        #: The program may resume from a checkpoint.
        self.resumes = True
        #: Locations where engines of frameworks are set up, by the key of the engine, and the first by framework.
        self.setup_sites: dict[int | str, Site] = {}
        #: Keys of unknown values that unanalyzed code receives.
        self.handed: set[Hashable] = set()
        #: A function that is too long to be analyzed completely.
        self.unread: Site | None = None

    def copy(self) -> ProgramAttributes:
        made = ProgramAttributes()
        made.__dict__.update(self.__dict__)
        made.scalers, made.training = copy.copy(self.scalers), copy.copy(self.training)
        return made


class Program:
    """The analysis of a source tree, or a run: graphs and the tracked objects of the events."""

    __slots__ = ("attributes", "graphs", "objects", "optimizer_keys")

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        #: Keys of the objects that are optimizers.
        self.optimizer_keys: list[int] = []
        self.objects: list[TrackedObject] = []
        self.attributes = ProgramAttributes()

    def iter_events(self) -> Iterator[Event]:
        """Return an iterator over all events, graph by graph."""
        return (node.event for graph in self.graphs for node in graph.nodes if node.event is not None)

    def name_of(self, what: int | str) -> str:
        """Return the source name of an object, given by key or by text."""
        return self.objects[what].name if isinstance(what, int) else str(what)

    def with_submodules(self, modules: Iterable[int]) -> frozenset[int]:
        """Return the keys of modules and of all their submodules."""
        whole = set(modules)
        todo = list(whole)
        while todo:
            parts = set(self.objects[todo.pop()].attributes.parts or ()) - whole
            whole |= parts
            todo += parts
        return frozenset(whole)

    def add_object(self, role: str, name: str, site: Site | None = None, **attributes: FieldValue) -> TrackedObject:
        """Create a tracked object of this program."""
        new_object = TrackedObject(len(self.objects), role, name, site, ObjectAttributes(**attributes))
        self.objects.append(new_object)
        if role == "optimizer":
            self.optimizer_keys.append(new_object.key)
        return new_object
