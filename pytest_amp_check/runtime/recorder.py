"""Records a run: turns what torch is asked to do into the events that the protocol judges."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from ..protocol import events as e
from ..protocol import surface
from ..protocol.chain import Chain
from ..protocol.events import Event, Program, Site, Symbol, Thing
from ..protocol.finding import Finding
from . import patches
from .collector import Collector
from .contents import Contents, look_into
from .sites import Sites, Spoken
from .steps import StepRecord, Steps

#: Parameters of an optimizer that are looked at to see whether a backward fed it, before all are.
SENTINELS = 8
#: Nodes of a graph that are looked at to find the scaled loss below what runs backward.
NEAR = 64
#: Nodes of a graph that are looked at to find the parameters it leads to.
FAR = 200_000
#: Tensors that came out of ``scaler.scale`` and are remembered.
SCALED_KEPT = 64
#: The mark on the graph node of a scaled loss.
MARK = "pytest_amp_check"
#: Low-precision dtypes that autocast and master weights can have.
LOW = {torch.float16: "float16", torch.bfloat16: "bfloat16"}

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _told(method: _Method) -> _Method:
    """A method that is told of an event. Its own errors must not reach the program that is recorded."""

    @functools.wraps(method)
    def told(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        if self.failure is not None or self._busy:
            return None
        self._busy = True
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on; it is reported at the end
            self.failure = error
            return None
        finally:
            self._busy = False

    return told  # type: ignore[return-value]


class Known:
    """What is remembered of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, thing: Thing) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.thing = thing
        self.said: Spoken | None = None
        self.params: list[torch.Tensor] = []
        self.sentinels: list[torch.Tensor] = []
        #: The latest backward that fed it, and whether the step before was skipped.
        self.backward: Event | None = None
        self.loss: Loss | None = None
        self.norm: Any = None
        self.skipped = False
        self.scaler: Scaler | None = None
        #: Whether its gradients are multiplied by a scale now, were unscaled by the user, were edited since then.
        self.under_scale = False
        self.unscaled = False
        self.edited: Site | None = None
        #: Optimizer steps, skipped or not, and backwards since its scheduler last moved.
        self.steps_since = 0
        self.backwards_since = 0
        self.state_id = 0
        self.state_site: Site | None = None
        self.looked_at: list[tuple[int, int]] = []
        self.refresh(optimizer)

    def refresh(self, optimizer: torch.optim.Optimizer) -> None:
        """Take its parameters anew."""
        self.params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        step = max(1, len(self.params) // SENTINELS)
        self.sentinels = [*self.params[::step], *self.params[-1:]]

    def sentinel_marks(self) -> list[tuple[int, int]]:
        return [_mark(p) for p in self.sentinels]

    def marks(self) -> list[tuple[int, int]]:
        return [_mark(p) for p in self.params]


class Scaler:
    """What is remembered of a GradScaler."""

    def __init__(self, scaler: Any, thing: Thing) -> None:
        self.scaler = weakref.ref(scaler)
        self.thing = thing
        self.said: Spoken | None = None
        self.scale = 1.0
        self.asked = False
        self.steps = 0
        self.skips = 0
        self.skips_in_a_row = 0
        self.waiting: list[StepRecord] = []
        self.stepped = False


class Loss:
    """A value that ran backward: the tensor, and the scale it was multiplied by."""

    __slots__ = ("scale", "tensor")

    def __init__(self, tensor: torch.Tensor, scale: float) -> None:
        self.tensor = tensor
        self.scale = scale


class Pass:
    """A backward pass that is running."""

    def __init__(self, event: Event, before: list[tuple[Known, list[tuple[int, int]]]], scale: float) -> None:
        self.event = event
        self.before = before
        self.scale = scale
        self.loss: torch.Tensor | None = None


class Penalty:
    """Scaled gradients that ``torch.autograd.grad`` made to be differentiated once more."""

    def __init__(self, event: Event, grads: list[torch.Tensor], scale: float) -> None:
        self.event = event
        self.grads = grads
        self.scale = scale
        self._sum = 0.0
        self._size = 0.0
        self._hooks: list[Any] = []

    def watch(self) -> None:
        """Learn, in the backward pass that follows, how the loss depends on these gradients."""
        for grad in self.grads:
            self._hooks.append(grad.register_hook(functools.partial(self._learn, grad.detach())))

    def _learn(self, grad: torch.Tensor, derivative: torch.Tensor) -> None:
        product = grad.double() * derivative.detach().double()
        self._sum += float(product.sum())
        self._size += float(product.abs().sum())

    def counts(self) -> bool:
        """Whether the scale matters.

        A loss that does not change with a common factor of them, as one that uses their direction alone, has a
        derivative of zero along it (Euler).
        """
        for hook in self._hooks:
            hook.remove()
        self.grads = []
        return abs(self._sum) > 1e-3 * self._size


def _mark(p: torch.Tensor) -> tuple[int, int]:
    """What changes when a gradient is replaced or edited in place."""
    grad = p.grad
    return (0, 0) if grad is None else (id(grad), grad._version)


class Recorder:
    """One recording, in the thread that began it."""

    def __init__(self, *, automatic: bool = False, outermost: Any = None) -> None:
        self.automatic = automatic
        self.outer: tuple[Recorder, ...] = ()
        self.failure: Exception | None = None
        self._busy = False
        self.sites = Sites(outermost)
        self.program = Program()
        self.chain = Chain(self.program)
        self.steps = Steps()
        self.collectors: list[Collector] = []
        self.optimizers: dict[int, Known] = {}
        self.scalers: dict[int, Scaler] = {}
        #: id of a parameter -> keys of the optimizers that hold it.
        self.owners: dict[int, tuple[int, ...]] = {}
        self._scaled: deque[tuple[weakref.ref[torch.Tensor], Scaler, float]] = deque(maxlen=SCALED_KEPT)
        self._penalties: list[Penalty] = []
        self._suspects: list[Penalty] = []
        self._passes = 0
        self._in_scaler_step = 0
        self._dtypes: set[str] = set()
        self._seen_backwards: set[int] = set()
        self._casts: dict[int, Event] = {}
        self._regions: list[tuple[int, bool]] = []
        self._grad_storages: dict[int, int] | None = None
        self._hook: Any = None
        self._written: set[int] = set()
        self._told_disabled = False
        self._scalers_made = False
        self._live: set[int] = set()
        self._poison: set[int] = set()
        self._keys = itertools.count()
        #: Whether in-place changes of tensors may concern the protocol now.
        self.watches_tensors = False
        self.program.facts["live_scalers"] = []
        self.program.facts["trained_modules"] = set()
        self.program.facts["scaler_dtypes"] = set()

    # The recording itself.

    def begin(self) -> None:
        patches.begin(self)
        for collector in self.collectors:
            collector.start()

    def end(self) -> None:
        try:
            for collector in reversed(self.collectors):
                collector.stop()
        finally:
            patches.end(self)
            self._unhook()
            self._busy = True
            self.chain.close()
            self.steps.settle()

    def findings(self, select: frozenset[str] | None = None) -> list[Finding]:
        """What has been found so far."""
        return self.chain.findings(select)

    # Things.

    def _known(self, optimizer: Any) -> Known:
        known = self.optimizers.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            return known
        thing = self.program.thing("optimizer", "the optimizer", None, constructed=False)
        known = self.optimizers[id(optimizer)] = Known(optimizer, thing)
        weakref.finalize(optimizer, self._gone, id(optimizer), thing.key)
        self._own(known)
        ids = {id(p) for p in known.params}
        for event in self.chain.pending:
            leaves = event.facts.get("leaves")
            if leaves and not ids.isdisjoint(leaves):
                event.facts["feeds"].add(thing.key)
                known.backward = event
                known.under_scale = bool(event.facts.get("scaled"))
        return known

    def _own(self, known: Known) -> None:
        key = known.thing.key
        shares: set[int] = known.thing.facts.setdefault("shares", set())
        for p in known.params:
            others = self.owners.get(id(p), ())
            for other in others:
                if other != key:
                    shares.add(other)
                    self.program.things[other].facts.setdefault("shares", set()).add(key)
            if key not in others:
                self.owners[id(p)] = (*others, key)

    def _gone(self, identity: int, key: int) -> None:
        known = self.optimizers.get(identity)
        if known is None or known.thing.key != key:
            return
        del self.optimizers[identity]
        for p in known.params:
            left = tuple(k for k in self.owners.get(id(p), ()) if k != key)
            if left:
                self.owners[id(p)] = left
            else:
                self.owners.pop(id(p), None)
        if self.failure is None:
            self.chain.forget(key)

    def _scaler(self, scaler: Any) -> Scaler:
        known = self.scalers.get(id(scaler))
        if known is not None and known.scaler() is scaler:
            return known
        thing = self.program.thing("scaler", "the scaler", None, constructed=True, enabled=True)
        known = self.scalers[id(scaler)] = Scaler(scaler, thing)
        known.scale = _scale_of(scaler)
        return known

    def _emit(
        self, kind: str, site: Site, subject: int | None = None, target: int | None = None, **facts: Any
    ) -> Event:
        names = facts.pop("names", {})
        event = Event(kind, site, subject, target, facts, names)
        self.chain.add(event)
        if self.chain.full and not self._passes:
            self.chain.settle()
        return event

    def _keys_of(self, params: Iterable[torch.Tensor]) -> set[int]:
        owners = self.owners
        return {key for p in params for key in owners.get(id(p), ())}

    def _by_key(self, key: int) -> Known | None:
        return next((k for k in self.optimizers.values() if k.thing.key == key), None)

    # Autocast.

    @_told
    def autocast_new(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entry = surface.SURFACE[name]
        bound = dict(zip(entry.parameters, args, strict=False))
        bound.update(kwargs)
        site = self.sites.here()
        excess = max(0, len(args) - len(entry.parameters))
        arguments = {key: _plain(value) for key, value in bound.items()}
        names = {"context": Spoken(site), "call": Spoken(site)}
        self._emit(e.AUTOCAST_NEW, site, callable=name, arguments=arguments, excess=excess, names=names)

    @_told
    def autocast_enter(self, region: Any) -> None:
        if self._passes:
            return  # torch restores autocast to compute a checkpoint again
        enabled = bool(region._enabled)
        dtype = LOW.get(region.fast_dtype, str(region.fast_dtype).removeprefix("torch."))
        if enabled:
            self._dtypes.add(dtype)
        frame = sys._getframe(3)
        decorated = frame.f_code.co_name == "decorate_autocast"
        site = self.sites.definition(frame.f_locals["func"].__code__) if decorated else self.sites.here()
        self._regions.append((id(region), enabled))
        self._watch()
        self._emit(
            e.AUTOCAST_ENTER,
            site,
            None,
            instance=id(region),
            enabled=enabled,
            device=region.device,
            dtype=dtype,
            cache=bool(region._cache_enabled),
            names={"context": _Context(site, decorated=decorated)},
        )

    @_told
    def autocast_exit(self, region: Any) -> None:
        if self._passes or not self._regions:
            return
        self._regions.pop()
        site = self.sites.here()
        self._emit(e.AUTOCAST_EXIT, site)
        if not self._regions:
            self._unhook()
            self._written.clear()
            self._poison.clear()
            self._watch()

    @_told
    def cache_cleared(self) -> None:
        self._unhook()
        self._emit(e.AUTOCAST_CACHE_CLEAR, self.sites.here())

    @_told
    def loss(self, function: str) -> None:
        if not self._passes:
            site = self.sites.here()
            self._emit(e.LOSS, site, function=function, names={"call": Spoken(site), "loss": Spoken(site, "argument")})

    def _watch(self) -> None:
        self.watches_tensors = bool(self._regions) or any(k.under_scale or k.unscaled for k in self.optimizers.values())
        patches.watch()

    # Parameters that change in an open region, and the forwards after it.

    def _hook_forwards(self) -> None:
        if self._hook is None and self._regions:
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._forward)

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _forward(self, module: torch.nn.Module, args: Any) -> None:
        if self not in patches.active():
            return
        self._forward_seen(module)

    @_told
    def _forward_seen(self, module: torch.nn.Module) -> None:
        if self._passes or not any(id(p) in self._written for p in module.parameters()):
            return
        self._unhook()
        site = self.sites.here()
        self._emit(e.FORWARD, site, cached=True, names={"module": Spoken(site)})

    @_told
    def params_written(self, target: Any) -> None:
        if not self._regions or self._passes:
            return
        params = list(target.parameters()) if isinstance(target, torch.nn.Module) else [target]
        if not any(isinstance(p, torch.nn.Parameter) or id(p) in self.owners for p in params):
            return
        self._written.update(id(p) for p in params)
        site = self.sites.here()
        self._emit(e.PARAM_WRITE, site, names={"call": Spoken(site)})
        self._hook_forwards()

    @_told
    def module_cast(self, module: torch.nn.Module, dtype: str) -> None:
        site = self.sites.here()
        thing = self.program.thing("module", "the model")
        names: dict[str, object] = {"module": Spoken(site, "receiver"), "call": Spoken(site)}
        event = Event(e.MODULE_CAST, site, thing.key, None, {"dtype": dtype}, names)
        for p in module.parameters():
            self._casts[id(p)] = event

    def _trains(self, known: Known) -> None:
        """Blame a cast of parameters to a low precision once they are stepped."""
        if not self._casts:
            return
        for p in known.params:
            event = self._casts.get(id(p))
            if event is not None and p.dtype in LOW:
                trained: set[int] = self.program.facts["trained_modules"]
                if event.subject not in trained:
                    assert event.subject is not None
                    trained.add(event.subject)
                    self.chain.add(event)

    # Scalers.

    @_told
    def scaler_new(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Event:
        self._scalers_made = True
        entry = surface.SURFACE[name]
        bound = dict(zip(entry.parameters, args, strict=False))
        bound.update(kwargs)
        site = self.sites.here()
        return self._emit(
            e.SCALER_NEW,
            site,
            None,
            callable=name,
            arguments={key: _plain(value) for key, value in bound.items()},
            excess=max(0, len(args) - len(entry.parameters)),
            names={"call": Spoken(site), "scaler": "the scaler"},
        )

    @_told
    def scaler_made(self, scaler: Any, event: Event) -> None:
        asked = event.facts["arguments"].get("enabled", True)
        if asked is True and not scaler.is_enabled() and not self._told_disabled:
            self._told_disabled = event.facts["disabled_itself"] = True
            # It may be judged already.
            self.chain.judge(event)

    @_told
    def scaled(self, scaler: Any, outputs: Any, result: Any) -> None:
        self._scalers_made = True
        if not scaler.is_enabled():
            return
        known = self._scaler(scaler)
        known.scale = _scale_of(scaler)
        site = self.sites.here()
        known.said = Spoken(site, "receiver")
        for tensor in _tensors(result):
            self._scaled.append((weakref.ref(tensor), known, known.scale))
            if tensor.grad_fn is not None:
                metadata: Any = tensor.grad_fn.metadata
                metadata[MARK] = (weakref.ref(self), known, known.scale)
        dtypes = frozenset(self._dtypes)
        names = {"scaler": known.said, "call": Spoken(site), "loss": Spoken(site, "argument", "outputs")}
        self._emit(e.SCALE, site, known.thing.key, dtypes=dtypes, names=names)
        self.program.facts["scaler_dtypes"].update(dtypes)
        self._goes_live(known)

    def _goes_live(self, known: Scaler) -> None:
        if known.thing.key not in self._live:
            self._live.add(known.thing.key)
            self.program.facts["live_scalers"].append(known.thing)

    @_told
    def scale_asked(self, scaler: Any) -> None:
        if scaler.is_enabled():
            self._scaler(scaler).asked = True

    @_told
    def before_unscale(self, scaler: Any, optimizer: Any) -> None:
        if not scaler.is_enabled():
            return
        known, holder = self._known(optimizer), self._scaler(scaler)
        self._look(known)
        site = self.sites.here()
        known.said = Spoken(site, "argument", "optimizer")
        holder.said = Spoken(site, "receiver")
        names = {"scaler": holder.said, "call": Spoken(site), "optimizer": known.said}
        self._emit(e.UNSCALE, site, holder.thing.key, known.thing.key, names=names)

    @_told
    def after_unscale(self, scaler: Any, optimizer: Any) -> None:
        if not scaler.is_enabled():
            return
        known = self._known(optimizer)
        known.under_scale, known.unscaled, known.edited = False, True, None
        known.looked_at = known.sentinel_marks()
        self._grad_storages = None
        self._watch()
        for collector in self.collectors:
            collector.after_unscale(scaler, optimizer)

    @_told
    def before_scaler_step(self, scaler: Any, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not scaler.is_enabled():
            return
        known, holder = self._known(optimizer), self._scaler(scaler)
        self._look(known)
        site = self.sites.here()
        known.said = Spoken(site, "argument", "optimizer")
        holder.said = Spoken(site, "receiver")
        closure = any(callable(x) for x in (*args, kwargs.get("closure")))
        self._trains(known)
        if known.unscaled and known.edited is not None:
            self._invalid(scaler, optimizer, known, site)
        names = {"scaler": holder.said, "call": Spoken(site), "optimizer": known.said}
        self._emit(e.SCALER_STEP, site, holder.thing.key, known.thing.key, closure=closure, names=names)
        self._in_scaler_step += 1
        scale = 1.0 if known.unscaled else holder.scale
        self.steps.begin(known.said, holder.said, holder.scale, known.loss, known.norm, site)
        for collector in self.collectors:
            collector.before_step(optimizer, scaler, scale)

    def _invalid(self, scaler: Any, optimizer: Any, known: Known, site: Site) -> None:
        """Gradients were edited after unscale_: whatever is not finite now was not before."""
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if any(value.item() for value in found.values()):
            return
        for p in known.params:
            if p.grad is not None and not bool(torch.isfinite(_values(p.grad)).all()):
                names = {"optimizer": known.said or "", "call": Spoken(known.edited or site)}
                self._emit(e.GRAD_INVALID, known.edited or site, None, known.thing.key, names=names)
                return

    @_told
    def after_scaler_step(self, scaler: Any, optimizer: Any, *, done: bool) -> None:
        if not scaler.is_enabled():
            return
        self._in_scaler_step -= 1
        record = self.steps.pending
        if not done or record is None:
            self.steps.drop()
            # torch has refused: what the gradients are now is not known.
            self._emit(e.HANDOFF, self.sites.here(), things=(self._known(optimizer).thing.key,))
            return
        known, holder = self._known(optimizer), self._scaler(scaler)
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        skipped = any(bool(value.item()) for value in found.values())
        self.steps.done(skipped=skipped, found_inf=skipped)
        holder.waiting.append(record)
        holder.steps += 1
        holder.skips += skipped
        holder.skips_in_a_row = holder.skips_in_a_row + 1 if skipped else 0
        holder.stepped = True
        known.scaler = holder
        self._stepped(known, skipped=skipped)
        for collector in self.collectors:
            collector.after_step(optimizer, scaler, skipped=skipped)

    def _stepped(self, known: Known, *, skipped: bool) -> None:
        known.skipped = skipped
        known.steps_since += 1
        known.under_scale = known.unscaled = False
        known.edited = None
        known.norm = known.loss = None
        self._grad_storages = None
        if self._regions and not skipped:
            self._written.update(id(p) for p in known.params)
            self._hook_forwards()
        self._watch()

    @_told
    def before_update(self, scaler: Any, new_scale: Any) -> None:
        if not scaler.is_enabled():
            return
        holder = self._scaler(scaler)
        site = self.sites.here()
        holder.said = Spoken(site, "receiver")
        names = {"scaler": holder.said, "call": Spoken(site)}
        self._update = self._emit(e.UPDATE, site, holder.thing.key, new_scale=new_scale is not None, names=names)

    @_told
    def after_update(self, scaler: Any) -> None:
        if not scaler.is_enabled():
            return
        holder = self._scaler(scaler)
        holder.scale = _scale_of(scaler)
        holder.asked = False
        tracker = scaler._growth_tracker
        number = None if tracker is None else int(tracker.item())
        for record in holder.waiting:
            record.scale_after = holder.scale
            record.growth_tracker = number
        if holder.waiting:
            self.steps.scaled(holder.waiting[-1].index, holder.scale)
        holder.waiting.clear()
        self._update.facts.update(
            scale=holder.scale,
            skips_in_a_row=holder.skips_in_a_row,
            skips=holder.skips,
            steps=holder.steps,
            growth_interval=scaler.get_growth_interval(),
        )

    @_told
    def scaler_state(self, scaler: Any) -> None:
        if scaler.is_enabled() and not self._saving:
            site = self.sites.here()
            holder = self._scaler(scaler)
            holder.said = holder.said or Spoken(site, "receiver")
            self._emit(e.SCALER_STATE, site, holder.thing.key, names={"scaler": Spoken(site, "receiver")})

    @_told
    def scaler_load(self, scaler: Any) -> None:
        if scaler.is_enabled():
            holder = self._scaler(scaler)
            holder.scale = _scale_of(scaler)
            self._emit(e.SCALER_LOAD, self.sites.here(), holder.thing.key)

    # Backward.

    @_told
    def before_backward(self, outputs: Any) -> Pass | None:
        self._passes += 1
        if self._passes > 1:
            return None  # a checkpoint computes its part anew inside the pass
        for known in self.optimizers.values():
            if known.edited is not None:
                self._look(known)
        site = self.sites.here()
        roots = _tensors(outputs)
        holder, scale = self._scale_below(roots)
        if self._penalties and holder is not None:
            self._judge_penalties(roots)
        facts: dict[str, Any] = {
            "feeds": set(),
            "divided": True,
            "scaled": holder is not None,
            "dtypes": set(self._dtypes),
        }
        if id(site) not in self._seen_backwards:
            self._seen_backwards.add(id(site))
            facts["leaves"] = frozenset(_leaves(roots))
        subject = None if holder is None else holder.thing.key
        event = self._emit(e.BACKWARD, site, subject, names=_backward_names(site), **facts)
        self._dtypes = set()
        before = [(k, k.sentinel_marks()) for k in self.optimizers.values()]
        made = Pass(event, before, scale)
        made.loss = roots[0].detach() if roots else None
        return made

    @_told
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
        leaves = event.facts.get("leaves")
        for known, marks in token.before:
            if known.thing.key in feeds or known.sentinel_marks() != marks or self._fed(known, leaves):
                feeds.add(known.thing.key)
                self._was_fed(known, event, token)
                optimizer = known.optimizer()
                if optimizer is not None:
                    fed.append(optimizer)
        for known in self.optimizers.values():
            if known.thing.key in feeds and known.backward is not event:
                self._was_fed(known, event, token)
        self._grad_storages = None
        self._watch()
        holder = next((s for s in self.scalers.values() if s.thing.key == event.subject), None)
        scaler = holder.scaler() if holder is not None else None
        for collector in self.collectors:
            saw_loss = getattr(collector, "saw_loss", None)
            if saw_loss is not None and token.loss is not None:
                saw_loss(token.loss)
            collector.after_backward(scaler, token.scale, fed)

    def _was_fed(self, known: Known, event: Event, token: Pass) -> None:
        known.backward = event
        known.backwards_since += 1
        known.looked_at = known.sentinel_marks()
        known.under_scale = event.subject is not None
        if token.loss is not None:
            known.loss = Loss(token.loss, token.scale)

    def _fed(self, known: Known, leaves: frozenset[int] | None) -> bool:
        """Whether a backward fed an optimizer of whose parameters the few that were looked at did not change."""
        if leaves is not None:
            return any(id(p) in leaves for p in known.params)
        marks = known.marks()
        changed = marks != getattr(known, "all_marks", marks)
        known.all_marks = marks  # type: ignore[attr-defined]
        return changed

    def _scale_below(self, roots: Sequence[torch.Tensor]) -> tuple[Scaler | None, float]:
        """The scaler that scaled what runs backward, and its scale at that time."""
        if not self._scaled:
            return None, 1.0
        for tensor, holder, scale in reversed(self._scaled):
            if any(tensor() is root for root in roots):
                return holder, scale
        for node in _nodes(roots, NEAR):
            found = node.metadata.get(MARK)
            if found is not None and found[0]() is self:
                return found[1], found[2]
        return None, 1.0

    # Gradient penalties.

    @_told
    def autograd_grad(self, outputs: Any, grads: Any, *, create_graph: bool) -> None:
        if not create_graph or self._passes:
            return
        holder, scale = self._scale_below(_tensors(outputs))
        if holder is None:
            return
        site = self.sites.here()
        names: dict[str, object] = {"scaler": holder.said or "", "call": Spoken(site)}
        event = Event(e.PENALTY, site, None, None, {}, names)
        self._penalties.append(Penalty(event, [g for g in _tensors(grads) if g.grad_fn is not None], scale))

    def _judge_penalties(self, roots: Sequence[torch.Tensor]) -> None:
        """Find those whose gradients run backward now without having been divided by the scale."""
        penalties, self._penalties = self._penalties, []
        for penalty in penalties:
            sources = {id(grad.grad_fn) for grad in penalty.grads}
            for node in _nodes(roots, FAR):
                if any(id(f) in sources for f, _ in node.next_functions) and not _divides(node, penalty.scale):
                    penalty.watch()
                    self._suspects.append(penalty)
                    break

    # Gradients.

    @_told
    def tensor_changed(self, tensor: torch.Tensor, effect: str, args: tuple[Any, ...]) -> None:
        if self._passes:
            return
        if self._regions and (isinstance(tensor, torch.nn.Parameter) or id(tensor) in self.owners):
            site = self.sites.here()
            self._written.add(id(tensor))
            self._emit(e.PARAM_WRITE, site, names={"call": Spoken(site)})
            self._hook_forwards()
            return
        if not any(k.under_scale or k.unscaled for k in self.optimizers.values()):
            return
        key = self._owner_of_grad(tensor)
        known = None if key is None else self._by_key(key)
        if known is None:
            return
        site = self.sites.here()
        number = args[0] if args else None
        self._edit(known, site, effect, number)

    def _edit(self, known: Known, site: Site, effect: str, number: Any) -> None:
        known.edited = site
        key = known.thing.key
        names = {"params": "p.grad", "call": Spoken(site), "optimizer": known.said or ""}
        if known.scaler is not None or known.backward is not None:
            holder = self._holder(known)
            names["scaler"] = holder.said if holder is not None and holder.said is not None else ""
        if effect == "zero":
            return  # found when all are
        known.looked_at = []
        if not known.under_scale:
            return
        scale = self._scale_for(known)
        if effect in ("divide", "multiply") and _is_number(number):
            factor = 1 / float(number) if effect == "divide" and float(number) else float(number)
            divides = math.isclose(factor * scale, 1.0, rel_tol=1e-3)
            if divides and scale != 1.0:
                known.under_scale = False
            self._emit(e.GRAD_DIVIDE if divides else e.GRAD_NORMALISE, site, owners=(key,), names=names)
        elif effect == "replace":
            self._emit(e.HANDOFF, site, things=(key,))
        elif effect in ("edit", "divide", "multiply"):
            self._emit(e.GRAD_EDIT, site, owners=(key,), names=names)

    def _holder(self, known: Known) -> Scaler | None:
        subject = known.backward.subject if known.backward is not None else None
        return next((s for s in self.scalers.values() if s.thing.key == subject), known.scaler)

    def _scale_for(self, known: Known) -> float:
        holder = self._holder(known)
        return 1.0 if holder is None else holder.scale

    @_told
    def grad_set(self, param: torch.Tensor, value: Any) -> None:
        keys = self.owners.get(id(param))
        if not keys or self._passes:
            return
        self._grad_storages = None
        site = self.sites.here()
        for key in keys:
            known = self._by_key(key)
            if known is None:
                continue
            known.edited = site
            if value is None or not known.under_scale or param.grad is None:
                continue
            known.looked_at = []
            scale = self._scale_for(known)
            old, new = param.grad.detach().norm(), value.detach().norm()
            names = {"params": "p.grad", "call": "this assignment", "optimizer": known.said or ""}
            if scale != 1.0 and math.isclose(float(new) * scale, float(old), rel_tol=1e-2):
                self._emit(e.GRAD_DIVIDE, site, owners=(key,), names=names)
            else:
                self._emit(e.HANDOFF, site, things=(key,))

    def _owner_of_grad(self, tensor: torch.Tensor) -> int | None:
        """The optimizer whose parameter has this tensor, or a view of it, as its gradient."""
        storages = self._grad_storages
        if storages is None:
            storages = self._grad_storages = {
                _storage(p.grad): known.thing.key
                for known in self.optimizers.values()
                for p in known.params
                if p.grad is not None
            }
        return storages.get(_storage(tensor))

    def _look(self, known: Known) -> None:
        """Find what has happened to gradients unseen: all cleared one by one, or edited by code that is not patched."""
        marks = known.sentinel_marks()
        if known.edited is not None and not any(identity for identity, _ in marks):
            if all(p.grad is None for p in known.params):
                self._emit(e.ZERO_GRAD, known.edited, owners=(known.thing.key,), names={"call": Spoken(known.edited)})
                known.under_scale = known.unscaled = False
        elif known.edited is not None and known.under_scale and all(not _any(p.grad) for p in known.sentinels):
            if all(not _any(p.grad) for p in known.params):
                self._emit(e.ZERO_GRAD, known.edited, owners=(known.thing.key,), names={"call": Spoken(known.edited)})
        elif known.looked_at and marks != known.looked_at:
            site = self.sites.here()
            self._edit(known, site, "edit", None)
            known.edited = site
        known.looked_at = marks

    @_told
    def zero_grad(self, optimizer: Any) -> None:
        known = self._known(optimizer)
        site = self.sites.here()
        if known.said is None:
            known.said = Spoken(site, "receiver")
        self._cleared([known], site, {"optimizer": Spoken(site, "receiver"), "call": Spoken(site)})

    @_told
    def module_zero_grad(self, module: torch.nn.Module) -> None:
        ids = {id(p) for p in module.parameters()}
        cleared = [k for k in self.optimizers.values() if k.params and all(id(p) in ids for p in k.params)]
        if cleared:
            site = self.sites.here()
            self._cleared(cleared, site, {"call": Spoken(site)})

    def _cleared(self, cleared: list[Known], site: Site, names: dict[str, object]) -> None:
        keys = {k.thing.key for k in cleared}
        for known in cleared:
            shares: set[int] = known.thing.facts["shares"]
            keys.update(key for key in shares if self._inside(key, known))
            known.under_scale = known.unscaled = False
            known.edited = None
            known.looked_at = []
        self._grad_storages = None
        self._emit(e.ZERO_GRAD, site, owners=tuple(sorted(keys)), names=names)
        self._watch()

    def _inside(self, key: int, known: Known) -> bool:
        """Whether another optimizer holds no parameter that this one does not."""
        other = self._by_key(key)
        ids = {id(p) for p in known.params}
        return other is not None and all(id(p) in ids for p in other.params)

    @_told
    def clip(
        self, params: Sequence[torch.Tensor], limit: Any, *, grads: Sequence[torch.Tensor] = (), nonfinite_error: bool
    ) -> None:
        owners = self._keys_of(params)
        owners.update(key for grad in grads if (key := self._owner_of_grad(grad)) is not None)
        if not owners:
            return
        site = self.sites.here()
        for key in owners:
            known = self._by_key(key)
            if known is not None:
                self._look(known)
                known.looked_at = []
        number = float(limit) if _is_number(limit) else 1.0
        holders = [h for key in owners if (k := self._by_key(key)) is not None and (h := self._holder(k)) is not None]
        if any(h.asked and number >= h.scale * 1e-3 for h in holders):
            return  # the limit was multiplied by the scale, as the gradients are
        if nonfinite_error and _caught(site):
            nonfinite_error = False
        self._emit(
            e.CLIP,
            site,
            owners=tuple(sorted(owners)),
            nonfinite_error=nonfinite_error,
            measures_only=math.isinf(number),
            undone=math.isinf(number),
            names={"call": Spoken(site), "params": Spoken(site, "argument", "parameters")},
        )

    @_told
    def norm_known(self, norm: Any) -> None:
        if isinstance(norm, torch.Tensor):
            for known in self.optimizers.values():
                if known.unscaled or known.under_scale:
                    known.norm = Loss(norm.detach(), 1.0 if known.unscaled else self._scale_for(known))

    # Optimizers.

    @_told
    def optimizer_new(self, optimizer: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        known = self._known(optimizer)
        known.thing.facts["constructed"] = True
        clean = all(p.grad is None for p in known.params)
        if clean:
            self._emit(e.OPTIMIZER_NEW, self.sites.here(), known.thing.key)

    @_told
    def params_changed(self, optimizer: Any) -> None:
        known = self.optimizers.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            known.refresh(optimizer)
            self._own(known)

    @_told
    def before_step(self, optimizer: Any) -> None:
        if self._in_scaler_step:
            return
        known = self._known(optimizer)
        site = self.sites.here()
        self._look(known)
        known.said = _stepper(site)
        self._trains(known)
        if self._passes and self.chain.pending:
            # A hook steps while the pass still runs, and clears the gradient that shows it.
            running = next((x for x in reversed(self.chain.pending) if x.kind == e.BACKWARD), None)
            if running is not None:
                running.facts["feeds"].add(known.thing.key)
                known.backward = running
        names = {"optimizer": known.said, "call": Spoken(site)}
        holder = self._holder(known)
        if holder is not None and holder.said is not None:
            names["scaler"] = holder.said
        checked = known.unscaled and not self._overflowed(optimizer, holder) and _conditional(site)
        self._emit(e.STEP, site, None, known.thing.key, checked=checked, names=names)
        backward = known.backward
        if (
            backward is not None
            and not self._scalers_made
            and not backward.facts["scaled"]
            and backward.facts["dtypes"] == {"float16"}
            and not backward.facts.get("alone")
        ):
            backward.facts["alone"] = True
            self.chain.judge(backward)
        self.steps.begin(known.said, None, None, known.loss, known.norm, site)
        scale = self._scale_for(known) if known.under_scale else 1.0
        for collector in self.collectors:
            collector.before_step(optimizer, None, scale)

    def _overflowed(self, optimizer: Any, holder: Scaler | None) -> bool:
        """Whether unscale_ has found values that are not finite in gradients that are about to be stepped."""
        scaler = holder.scaler() if holder is not None else None
        if scaler is None:
            return False
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return any(bool(value.item()) for value in found.values())

    @_told
    def after_step(self, optimizer: Any) -> None:
        if self._in_scaler_step:
            return
        known = self._known(optimizer)
        self.steps.done(skipped=False, found_inf=False)
        self._stepped(known, skipped=False)
        for collector in self.collectors:
            collector.after_step(optimizer, None, skipped=False)

    @_told
    def scheduler_step(self, scheduler: Any) -> None:
        known = self.optimizers.get(id(getattr(scheduler, "optimizer", None)))
        if known is None:
            return
        site = self.sites.here()
        idle = not known.steps_since and known.backwards_since > 0
        skipped = known.steps_since == 1 and known.skipped
        known.steps_since = known.backwards_since = 0
        names = {"call": Spoken(site), "optimizer": known.said or "", "scheduler": Spoken(site, "receiver")}
        self._emit(e.SCHEDULER_STEP, site, None, known.thing.key, skipped=skipped, idle=idle, names=names)

    # Checkpoints.

    _saving = False

    @_told
    def optimizer_state(self, optimizer: Any, state: Any) -> None:
        known = self._known(optimizer)
        known.state_id = id(state)
        known.state_site = self.sites.here()
        known.said = known.said or Spoken(known.state_site, "receiver")

    @_told
    def saved(self, obj: Any) -> None:
        contents: Contents = look_into(obj)
        site = self.sites.here()
        owners = [k for k in self.optimizers.values() if k.state_id in contents.states]
        live = [k.scaler for k in owners if k.scaler is not None and k.scaler.scaler() is not None]
        for known in owners:
            known.thing.name = str(known.said or "") or known.thing.name
        for holder in (*live, *(self._scaler(s) for s in contents.scalers)):
            holder.thing.name = str(holder.said or "") or holder.thing.name
        place = next((k.state_site for k in owners if k.state_site is not None and k.scaler is not None), None)
        self._emit(
            e.SAVE,
            place or site,
            optimizers=tuple(k.thing.key for k in owners if k.scaler is not None),
            scalers=(True,) if contents.scaler_states or contents.scalers else (),
            whole_scalers=(),
            scope_scalers=tuple(h.thing.key for h in live),
            open=False,
            names={},
        )
        if contents.scalers:
            whole = tuple(self._scaler(s).thing.key for s in contents.scalers)
            self._emit(e.SAVE, site, optimizers=(), scalers=(), whole_scalers=whole, scope_scalers=(), open=False)


class _Context:
    """The words for the context of a ``with`` statement, or of a decorator."""

    def __init__(self, site: Site, *, decorated: bool) -> None:
        self.site = site
        self.decorated = decorated

    def __str__(self) -> str:
        line = linecache.getline(self.site.path, self.site.line)
        if self.decorated:
            text = line.strip().removeprefix("@")
        else:
            text = line[self.site.column : self.site.end_column] if self.site.end_line == self.site.line else ""
        return text.partition("(")[0].strip()


def _backward_names(site: Site) -> dict[str, object]:
    return {
        "loss": Spoken(site, "inner argument", "outputs"),
        "scaler": Spoken(site, "inner receiver"),
        "call": Spoken(site),
    }


def _stepper(site: Site) -> Spoken:
    return Spoken(site, "receiver")


def _plain(value: Any) -> object:
    """An argument as the protocol's facts hold it."""
    if isinstance(value, torch.dtype):
        return Symbol(surface.canonical(str(value)))
    if isinstance(value, torch.device):
        return Symbol("torch.device()")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return e.UNKNOWN


def _scale_of(scaler: Any) -> float:
    value = scaler._scale
    return float(scaler._init_scale) if value is None else float(value.item())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for item in value for x in _tensors(item)]
    return []


def _values(grad: torch.Tensor) -> torch.Tensor:
    return grad._values() if grad.is_sparse else grad


def _any(grad: torch.Tensor | None) -> bool:
    return grad is not None and bool(_values(grad).any())


def _storage(tensor: torch.Tensor) -> int:
    values = _values(tensor) if tensor.layout == torch.sparse_coo else tensor
    return values.untyped_storage().data_ptr()


def _nodes(roots: Iterable[torch.Tensor], limit: int) -> Iterator[Any]:
    """The nodes of the graph below some tensors, nearest first."""
    work: deque[Any] = deque(root.grad_fn for root in roots if root.grad_fn is not None)
    seen = {id(node) for node in work}
    kept = list(work)
    while work and limit:
        limit -= 1
        node = work.popleft()
        yield node
        for onward, _ in node.next_functions:
            if onward is not None and id(onward) not in seen:
                seen.add(id(onward))
                kept.append(onward)
                work.append(onward)


def _leaves(roots: Sequence[torch.Tensor]) -> Iterator[int]:
    """Identities of the parameters that a backward of these tensors reaches."""
    for node in _nodes(roots, FAR):
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield id(variable)


def _divides(node: Any, scale: float) -> bool:
    """Whether a graph node divides what it is given by the loss scale, or multiplies by its inverse."""
    name = type(node).__name__
    for attribute in ("_saved_other", "_saved_self", "_saved_scalar"):
        try:
            number = getattr(node, attribute, None)
        except RuntimeError:
            continue
        if number is None or not _is_number(number):
            continue
        factor = float(number)
        if name.startswith("Mul") and math.isclose(factor * scale, 1.0, rel_tol=1e-3):
            return True
        if name.startswith("Div") and attribute == "_saved_other" and math.isclose(factor, scale, rel_tol=1e-3):
            return True
    return False


def _caught(site: Site) -> bool:
    """Whether the call at a place stands in the body of a ``try`` that handles errors."""
    return any(isinstance(node, ast.Try) and node.handlers for node in _around(site))


def _conditional(site: Site) -> bool:
    """Whether the call at a place is made under a condition."""
    return any(isinstance(node, ast.If) for node in _around(site))


def _around(site: Site) -> Iterator[ast.AST]:
    """The statements whose body holds a place, within the function it stands in."""
    try:
        node: ast.AST = ast.parse("".join(linecache.getlines(site.path)))
    except (SyntaxError, ValueError):
        return
    held: list[ast.AST] = []
    while True:
        inner = None
        for name in ("body", "orelse", "handlers", "finalbody"):
            for child in getattr(node, name, ()):
                if isinstance(child, ast.AST) and child.lineno <= site.line <= (child.end_lineno or child.lineno):  # type: ignore[attr-defined]
                    inner = child
                    if name == "body" or isinstance(node, ast.If):
                        held.append(node)
        if inner is None:
            break
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            held.clear()
        node = inner
    yield from held
