"""Event graphs that tests build manually, without a source program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_amp_check.protocol import event_graph
from pytest_amp_check.protocol import events as e
from pytest_amp_check.protocol.event_graph import Graph, Node, Program
from pytest_amp_check.protocol.events import Event
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.graph_checker import check
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.protocol.tracked_objects import TrackedObject


class Drawing:
    """A graph built node by node. The line of an event is its number."""

    def __init__(self, optimizers: int = 1) -> None:
        self.program = Program()
        self.scaler = self.program.add_object("scaler", "scaler", None, enabled=True)
        self.optimizers: list[TrackedObject] = [
            self.program.add_object("optimizer", f"optimizer{i}", None, constructed=True) for i in range(optimizers)
        ]
        self.graph = Graph("train")
        self.graph.nodes.append(Node())
        self.program.graphs.append(self.graph)
        self.lines = 0

    def test(self, text: str = "flag") -> event_graph.Predicate:
        made = event_graph.Predicate(len(self.graph.predicates), text, None)
        self.graph.predicates.append(made)
        return made

    def node(self, event: Event | None = None) -> int:
        self.graph.nodes.append(Node(event))
        return len(self.graph.nodes) - 1

    def way(self, start: int, end: int, test: event_graph.Predicate | None = None, truth: bool = True) -> None:
        self.graph.nodes[start].edges.append((end, -1 if test is None else test.key, truth))

    def event(self, kind: e.EventKind, i: int = 0, **facts: Any) -> Event:
        self.lines += 1
        site = Site("train.py", self.lines)
        scaled = kind in (e.ScalerNew, e.Unscale, e.ScalerStep, e.Update, e.ScalerState)
        stepped = kind in (e.Unscale, e.ScalerStep, e.Step)
        subject = self.scaler.key if scaled else None
        if kind == e.OptimizerNew:
            subject = self.optimizers[i].key
        if kind in (e.Clip, e.ZeroGrad, e.GradRead):
            facts.setdefault("owners", (self.optimizers[i].key,))
        return kind(site, subject, self.optimizers[i].key if stepped else None, **facts)

    def scaled_backward(self, **facts: Any) -> Event:
        made = self.event(e.Backward, **facts)
        made.subject = self.scaler.key
        return made

    def line(self, start: int, *events: Event) -> int:
        """Add a chain of events. Return the node of the last event."""
        for event in events:
            node = self.node(event)
            self.way(start, node)
            start = node
        return start

    def diamond(
        self, start: int, test: event_graph.Predicate, yes: Sequence[Event] = (), no: Sequence[Event] = ()
    ) -> int:
        """Add a branch with an edge for each truth value. Return the node where the paths join."""
        end = self.node()
        for truth, events in ((True, yes), (False, no)):
            first = self.node()
            self.way(start, first, test, truth)
            self.way(self.line(first, *events), end)
            for event in events:
                event.guards = (*event.guards, (test.key, truth))
        return end

    def findings(self) -> list[Finding]:
        return check(self.program)

    def codes(self) -> list[tuple[int, str]]:
        return [(f.line, f.code) for f in self.findings() if f.code != "AMP502"]
