"""AMP110 forward-outside-autocast."""

from __future__ import annotations

from ...event_graph import Graph, Program
from ...events import ModuleCast, Scale
from ...rule import BOTH, INFO, WARNING, Certainty, Edit, Rule, TraceContext, Verdicts, ViolationKind
from ...sites import Site
from ...tracked_objects import TrackedObject


def _check_forward_outside(program: Program) -> Verdicts:
    """Yield losses of a live scaler whose forward ran outside autocast. The cause is the forward, if it is known."""
    live = {tracked_object.key for tracked_object in program.attributes.scalers.live_scalers}
    never = not program.attributes.enters_autocast
    halved = [(number, x) for number, graph in enumerate(program.graphs) for x in _find_float16_casts(graph)]
    blamed: dict[tuple[int, int], Scale] = {}
    for number, graph in enumerate(program.graphs):
        for node in graph.nodes:
            event = node.event
            if not isinstance(event, Scale) or event.subject is None or event.subject not in live:
                continue
            forward = event.forward
            model = program.objects[forward.subject] if forward is not None and forward.subject is not None else None
            here = (forward or event).site
            if any(
                _may_cast_model(cast, model, here, elsewhere=at != number or not _is_same_function(cast.site, here))
                for at, cast in halved
            ):
                continue  # a model cast to float16 needs the scaler too
            if event.other_device is not None:
                yield "scale:other-device", event.other_device, {}, (event,)
            elif event.disabled_by is not None:
                if never:
                    yield "scale:autocast-disabled", event.disabled_by, {}, (event,)
            elif event.autocast == "out" and event.loss_in_region:
                if forward is not None or not event.callees:
                    yield "scale@forward-outside", forward or event, {}, (event,)
                elif event.bare:
                    yield "scale:loss-alone", event, {}, ()
            elif event.has_penalty and not never:
                continue  # the forward of a penalty on gradients is kept in float32, beside forwards in regions
            elif (never if event.bare is None else event.bare) and event.float32:
                # One event per entry point and scaler. Exemptions are decided later.
                key = (number, event.subject)
                earlier = blamed.get(key)
                if earlier is None or _rate_forward_info(event) > _rate_forward_info(earlier):
                    blamed[key] = event
    for event in blamed.values():
        label = "scale@no-autocast" if never else "scale@outside-autocast"
        if not event.forward_read:
            label += "-unknown"
        yield label, event.forward or event, {}, (event,)


def _find_float16_casts(graph: Graph) -> list[ModuleCast]:
    """Return the casts to float16, except those that the same expression takes back: ``model.half().float()``."""
    casts = [node.event for node in graph.nodes if isinstance(node.event, ModuleCast)]
    undone = {(cast.subject, cast.site.call_key) for cast in casts if cast.dtype == "float32"}
    return [x for x in casts if x.dtype == "float16" and (x.subject, x.site.call_key) not in undone]


def _is_same_function(one: Site, other: Site) -> bool:
    return (one.path, one.function) == (other.path, other.function)


def _may_cast_model(cast: ModuleCast, model: TrackedObject | None, here: Site, *, elsewhere: bool) -> bool:
    """Return True if the cast may apply to the model of the forward at ``here``; ``elsewhere``: in another function.

    A model that nobody names may be any that the same function casts. Elsewhere it may be one that is trained after the
    cast, or that the function was given: a copy for a checkpoint or an evaluation is another one. Variables of two
    files are different models, whatever their names are.
    """
    name = model.name.rpartition(".")[2] if model is not None else ""
    if not name and not elsewhere:
        return cast.subject is None or model is None or cast.subject == model.key
    if cast.subject is not None:
        return cast.trained if model is None else cast.subject == model.key
    named = bool(name) and (cast.called is None or name in cast.called)
    is_variable = cast.called is not None and "self" not in cast.called
    return (named and not (is_variable and cast.site.path != here.path)) or (elsewhere and cast.given)


def _rate_forward_info(event: Scale) -> int:
    """Return 0 to 2: a point for a known forward, and a point for an analyzed forward."""
    return bool(event.forward) + bool(event.forward_read)


_AROUND_FORWARD = (
    Edit('begin `with torch.autocast("cuda"):` before this line, and end it before backward', search="forward"),
)

RULE = Rule(
    "AMP110",
    "forward-outside-autocast",
    WARNING,
    "The loss that a scaler scales was computed without autocast.",
    effect="training is correct, but as slow and memory-hungry as float32, plus the cost of the scaler",
    detected_by=BOTH,
    program_checks={Scale: _check_forward_outside},
    prescan_words=("scaler",),
    violations={
        "scale@no-autocast": ViolationKind(
            "`{scaler}` scales a loss, but nothing enters autocast, so the training runs in float32: "
            'run `{module}` and the loss in `with torch.autocast("cuda"):`',
            trace_context=TraceContext(edits=_AROUND_FORWARD),
        ),
        "scale@no-autocast-unknown": ViolationKind(
            "`{scaler}` scales a loss, but the analyzed code never enters autocast: run `{module}` and "
            'the loss in `with torch.autocast("cuda"):`, unless the model itself enters it',
            INFO,
            certainty=Certainty(always_possible=True, assumption="the code of the model enters no `autocast` itself"),
            trace_context=TraceContext(edits=_AROUND_FORWARD),
        ),
        "scale@outside-autocast": ViolationKind(
            "`{scaler}` scales a loss computed outside autocast, so the training runs in float32: run "
            '`{module}` and the loss in `with torch.autocast("cuda"):`',
            trace_context=TraceContext(edits=_AROUND_FORWARD),
        ),
        "scale@outside-autocast-unknown": ViolationKind(
            "`{scaler}` scales a loss that seems to be computed outside autocast: run `{module}` and "
            'the loss in `with torch.autocast("cuda"):`, unless the model itself enters it',
            INFO,
            certainty=Certainty(always_possible=True, assumption="the code of the model enters no `autocast` itself"),
            trace_context=TraceContext(edits=_AROUND_FORWARD),
        ),
        "scale:autocast-disabled": ViolationKind(
            "`{call}` is disabled in every forward, but `{scaler}` is enabled, so the training runs in float32: enable "
            "autocast, or give both the same `enabled`"
        ),
        "scale:other-device": ViolationKind(
            "`{context}` is entered for another device than {device}, the device of the scaled loss, so the forward "
            "runs in float32: pass `device_type='{device}'`, or `device.type` of the tensors"
        ),
        "scale@forward-outside": ViolationKind(
            "`{scaler}` scales a loss whose forward pass ran before the autocast region, so the model "
            "runs in float32: move the call of `{module}` into the region"
        ),
        "scale:loss-alone": ViolationKind(
            "`{scaler}` scales a loss that alone is computed in the autocast region, so the model runs in float32: "
            "move the call of the model into the region, unless the model itself enters one",
            INFO,
            certainty=Certainty(always_possible=True, assumption="the code of the model enters no `autocast` itself"),
        ),
    },
    rationale="""\
Autocast makes a training mixed-precision; a GradScaler alone does not. Without a region around the model's forward
every matmul runs in float32, and the scaler protects gradients that cannot underflow. A region around the loss alone
does not help, because autocast runs losses in float32 anyway. Nor does a region whose `enabled` is false by mistake: a
recorded run shows the value. The training is correct but slow and memory-hungry, and
nothing shows it.
""",
    harm="""\
Twenty steps of Adam in float32 were bit-identical with and without the scaler. The scaler adds a pass over all
gradients and a wait for the device at each step. The benefits of AMP are lost. In a stack of Linear and GELU layers
autocast cut the saved activations from 4.0 to 2.4 MiB. Float32 matmuls do not use the half-precision units of a GPU.
""",
    bad_example="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)  # AMP110
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Put the forward and the loss in `with torch.autocast(device, dtype=torch.float16):`, or drop the "
    "scaler.",
    sources=(
        (
            "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html: autocast and "
            "GradScaler work together, and are modular"
        ),
        (
            "PyTorch documentation: Automatic Mixed Precision examples, "
            "docs.pytorch.org/docs/stable/notes/amp_examples.html"
        ),
        "measured with torch 2.13 on the CPU",
    ),
)
