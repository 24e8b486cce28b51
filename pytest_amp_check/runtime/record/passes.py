"""Backward passes: what they run from, and which optimizers they feed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...protocol import events as e
from ...protocol.events import Event, Site
from .gradients import Gradients
from .graph import FAR, NEAR, bare, below, divides, holds, leaves, multiplies, nodes, tensors
from .recording import told
from .source import Spoken
from .tracked import Known, Loss, Pass, Penalty, Scaler

if TYPE_CHECKING:
    import torch

#: The mark on the graph node of a scaled loss.
MARK = "pytest_amp_check"


class Passes(Gradients):
    """Told of backward passes."""

    @told
    def before_backward(self, outputs: Any) -> Pass | None:
        self._passes += 1
        if self._passes > 1:
            return None  # a checkpoint computes its part anew inside the pass
        site = self.sites.here()
        for known in self.optimizers.values():
            if known.edited is not None:
                self._look(known)
            if known.used and not any(holds(p.grad) for p in known.sentinels):
                # Cleared in a way that was not seen.
                self._emit(e.ZERO_GRAD, site, owners=(known.thing.key,), guessed=True)
            known.used = False
        roots = tensors(outputs)
        holder, scale = self._scale_below(roots)
        if self._penalties and holder is not None:
            self._judge_penalties(roots)
        facts: dict[str, Any] = {
            "feeds": set(),
            "divided": True,
            "scaled": holder is not None,
            # More than one number runs backward from gradients that are given, and may be scaled already.
            "opaque": holder is None and any(root.numel() != 1 for root in roots),
            "dtypes": self._dtypes_below(site, roots),
            "uneven": holder is not None and self._uneven(roots, scale),
        }
        reached = self._leaves.get(id(site))
        if reached is None:
            reached = self._leaves[id(site)] = facts["leaves"] = frozenset(leaves(roots))
        subject = None if holder is None else holder.thing.key
        event = self._emit(e.BACKWARD, site, subject, names=self._at(site, _backward_names), **facts)
        self._dtypes = set()
        before = [(k, k.sentinel_marks()) for k in self.optimizers.values()]
        made = Pass(event, before, scale, reached)
        made.loss = bare(roots[0]) if roots else None
        return made

    @told
    def after_backward(self, token: Pass | None, *, done: bool) -> None:
        self._passes -= 1
        if token is None:
            return
        suspects, self._suspects = self._suspects, []
        for penalty in suspects:
            if penalty.counts():
                self.chain.add(penalty.event)
        event = token.event
        feeds: set[int] = event.facts["feeds"]
        fed: list[torch.optim.Optimizer] = []
        for known, marks in token.before:
            now = known.sentinel_marks()
            if now != marks or known.thing.key in feeds or known.holds(token.leaves):
                feeds.add(known.thing.key)
                self._was_fed(known, event, token, now)
                optimizer = known.optimizer()
                if optimizer is not None:
                    fed.append(optimizer)
        for known in self.optimizers.values():
            if known.thing.key in feeds and known.backward is not event:
                self._was_fed(known, event, token, known.sentinel_marks())
        self._grad_storages = None
        self._watch()
        if self.collectors:
            self._collect(token, fed)

    def _collect(self, token: Pass, fed: Sequence[torch.optim.Optimizer]) -> None:
        holder = next((s for s in self.scalers.values() if s.thing.key == token.event.subject), None)
        scaler = holder.scaler() if holder is not None else None
        for collector in self.collectors:
            saw_loss = getattr(collector, "saw_loss", None)
            if saw_loss is not None and token.loss is not None:
                saw_loss(token.loss)
            collector.after_backward(scaler, token.scale, fed)

    def _was_fed(self, known: Known, event: Event, token: Pass, marks: list[tuple[int, int]]) -> None:
        known.backward = event
        known.backwards_since += 1
        known.looked_at = marks
        known.under_scale = event.subject is not None
        if token.loss is not None:
            known.loss = Loss(token.loss, token.scale)

    def _scale_below(self, roots: Sequence[torch.Tensor]) -> tuple[Scaler | None, float]:
        """The scaler that scaled what runs backward, and its scale at that time."""
        if not self._scaled:
            return None, 1.0
        for tensor, holder, scale in reversed(self._scaled):
            scaled = tensor()
            for root in roots:
                if scaled is root:
                    return holder, scale
        for node in nodes(roots, NEAR):
            found = node.metadata.get(MARK)
            if found is not None and found[0]() is self:
                return found[1], found[2]
        return None, 1.0

    def _mark(self, node: Any) -> tuple[Scaler, float] | None:
        """The scaler whose ``scale`` made a node of the graph, and its scale at that time."""
        found = node.metadata.get(MARK)
        return (found[1], found[2]) if found is not None and found[0]() is self else None

    def _uneven(self, roots: Sequence[torch.Tensor], scale: float) -> bool:
        """Whether a sum runs backward of which some terms are scaled and others not, or by another scaler.

        Terms that feed no optimizer in common may be scaled as they like.
        """
        plain: set[int] = set()
        scaled: dict[int, list[Any]] = {}

        def ends(node: Any) -> bool:
            return self._mark(node) is not None or multiplies(node, scale)

        for node in nodes(roots, FAR, ends):
            mark = self._mark(node)
            if mark is not None:
                scaled.setdefault(mark[0].thing.key, []).append(node)
            else:
                plain.update(self._owners_at(node))
        if not scaled or (len(scaled) == 1 and not plain):
            return False
        fed = plain
        for made in scaled.values():
            reached = {key for node in below(made, FAR) for key in self._owners_at(node)}
            if not fed.isdisjoint(reached):
                return True
            fed |= reached
        return False

    def _owners_at(self, node: Any) -> tuple[int, ...]:
        """The optimizers of the parameter whose gradient a node of the graph accumulates."""
        variable = getattr(node, "variable", None)
        return () if variable is None else self.owners.get(id(variable), ())

    def _scaled_already(self, roots: Sequence[torch.Tensor], scale: float) -> bool:
        """Whether a loss that is about to be scaled holds a scale that nothing has divided it by again."""

        def ends(node: Any) -> bool:
            return divides(node, scale)

        return any(self._mark(node) is not None or multiplies(node, scale) for node in nodes(roots, NEAR, ends))

    @told
    def autograd_grad(self, outputs: Any, grads: Any, *, create_graph: bool) -> None:
        if not create_graph or self._passes:
            return
        holder, scale = self._scale_below(tensors(outputs))
        if holder is None:
            return
        site = self.sites.here()
        names: dict[str, object] = {"scaler": holder.said or "", "call": Spoken(site)}
        event = Event(e.PENALTY, site, None, None, {}, names)
        self._penalties.append(Penalty(event, [g for g in tensors(grads) if g.grad_fn is not None], scale))

    def _judge_penalties(self, roots: Sequence[torch.Tensor]) -> None:
        """Find those whose gradients run backward now without having been divided by the scale."""
        penalties, self._penalties = self._penalties, []
        for penalty in penalties:
            # A node is known by its identity as long as it is held.
            made = [grad.grad_fn for grad in penalty.grads]
            sources = {id(node) for node in made}
            # Whatever lies below a division by the scale is right.
            if any(id(node) in sources for node in nodes(roots, FAR, functools.partial(divides, scale=penalty.scale))):
                penalty.watch()
                self._suspects.append(penalty)


def _backward_names(site: Site) -> dict[str, object]:
    return {
        "loss": Spoken(site, "inner argument", "outputs"),
        "scaler": Spoken(site, "inner receiver"),
        "call": Spoken(site),
    }
