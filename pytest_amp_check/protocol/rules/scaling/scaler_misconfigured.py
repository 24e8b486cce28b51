"""AMP216 scaler-misconfigured."""

from __future__ import annotations

from ...event_graph import Program
from ...events import AutocastEnter, Flag, ScalerNew, Symbol
from ...fix import SAFE
from ...rule import WARNING, Labels, Rule, Verdicts, ViolationKind
from ...sites import Site
from ...torch_api import SCALED_DEVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

#: Clean steps below which a doubling costs more skipped steps than it gains: 7 of 200 at 10, 94 of 200 at 1.
_SHORT_INTERVAL = 50


#: Initial scale above which the first steps of any ordinary loss overflow in float16.
_LARGE_SCALE = 2.0**24


#: Bound below which an integer is interpreted as a device index, not as a scale.
_DEVICES = 16


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _format_value(value: object) -> str:
    if isinstance(value, Symbol):
        return "a torch.device" if value == "torch.device()" else str(value)
    return f"{value:.10g}" if isinstance(value, float) and not value.is_integer() else repr(value)


def _check_arguments(event: ScalerNew, program: Program) -> Labels:
    arguments = event.arguments
    if arguments.get("enabled") is False:
        return
    misplaced = list(_check_misplaced(arguments.get("device"), arguments.get("init_scale")))
    if misplaced:
        yield misplaced[0]
        return
    if arguments.get("enabled") == Symbol("torch.bfloat16"):
        yield "scaler:wrong-dtype", {}
    yield from _check_init_scale(arguments.get("init_scale"), event.site)
    yield from _check_factors(arguments.get("growth_factor"), arguments.get("backoff_factor"))
    interval = arguments.get("growth_interval")
    # Tests choose odd scales on purpose.
    if _is_number(interval) and not event.site.is_in_test():
        if interval <= 0:
            yield "scaler:no-growth", {"value": _format_value(interval)}
        elif interval < _SHORT_INTERVAL:
            yield "scaler:growth-interval", {"value": _format_value(interval)}


def _check_misplaced(device: object, scale: object) -> Labels:
    """Yield arguments that landed in another parameter. Other mistakes follow from the first."""
    for parameter, value in (("device", device), ("init_scale", scale)):
        if isinstance(value, Flag):
            yield "scaler:flag-misplaced", {"value": str(value), "parameter": parameter}
            return
    if type(device) is int and 0 <= device < _DEVICES:
        yield "scaler:index-as-device", {"value": _format_value(device)}
    elif isinstance(device, (bool, int, float)):
        keyword = "enabled" if isinstance(device, bool) else "init_scale"
        yield "scaler:number-as-device", {"value": _format_value(device), "keyword": keyword}
    elif isinstance(scale, bool):
        yield "scaler:bool-as-scale", {"value": _format_value(scale), "number": str(float(scale))}
    elif isinstance(scale, str) and (not isinstance(scale, Symbol) or scale == "torch.device()"):
        yield "scaler:device-as-scale", {"value": _format_value(scale)}


def _check_init_scale(scale: object, site: Site) -> Labels:
    if _is_number(scale) and scale <= 0:
        yield "scaler:zero-scale", {"value": _format_value(scale)}
    elif _is_number(scale) and scale > _LARGE_SCALE and not site.is_in_test():
        yield "scaler:init-scale", {"value": _format_value(scale)}


def _check_factors(growth: object, backoff: object) -> Labels:
    bad_growth, bad_backoff = _is_number(growth) and growth <= 1, _is_number(backoff) and backoff >= 1
    if bad_growth and bad_backoff:
        yield "scaler:factors-swapped", {"growth": _format_value(growth), "backoff": _format_value(backoff)}
    elif bad_growth:
        yield "scaler:growth-factor", {"value": _format_value(growth)}
    elif bad_backoff:
        yield "scaler:backoff-factor", {"value": _format_value(backoff)}
    elif _is_number(backoff) and backoff <= 0:
        yield "scaler:zero-backoff", {"value": _format_value(backoff)}


def _check_device_mismatch(program: Program) -> Verdicts:
    """Yield scalers of a device without a region, if all regions of the program are for another device."""
    live = {tracked_object.key: tracked_object for tracked_object in program.attributes.scalers.live_scalers}
    events = list(program.iter_events()) if live else []
    entered = [x.device for x in events if isinstance(x, AutocastEnter) and not x.null]
    if len(set(entered)) != 1 or entered[0] not in SCALED_DEVICES:
        return
    for event in events:
        if isinstance(event, ScalerNew) and event.subject in live:
            device = live[event.subject].attributes.device
            if device in SCALED_DEVICES and device != entered[0]:
                yield "scaler:other-device", event, {"device": str(device), "other": entered[0]}, ()


RULE = Rule(
    "AMP216",
    "scaler-misconfigured",
    WARNING,
    "GradScaler's arguments land in the wrong place, or disable or destabilise its dynamic scale.",
    effect="torch raises, which ends the run",
    applicability=SAFE,
    event_checks={ScalerNew: _check_arguments},
    program_checks={ScalerNew: _check_device_mismatch},
    prescan_words=("scaler",),
    violations={
        "scaler:number-as-device": ViolationKind(
            "`{value}` lands in `device`, the first parameter of `{call}`, and is ignored: pass it as "
            "`{keyword}={value}`",
            effect="the scale starts at 65536 whatever number is given; no error",
        ),
        "scaler:index-as-device": ViolationKind(
            "`{call}` is given {value} as its `device`, which is a device type and not an index: pass `'cuda'` or "
            "`'cpu'`",
            effect="the index is ignored, and the scaler is enabled for no known type of device; no error",
        ),
        "scaler:bool-as-scale": ViolationKind(
            "`{value}` lands in the `init_scale` parameter of `{call}`, so the loss scale is {number}: "
            "pass it as `enabled={value}`",
            effect="the scale begins at 1, so small gradients become zero until it has grown; no error",
            effect_cases={
                "number=0.0": "a scale of 0 makes the weights NaN in the first step; no error",
            },
        ),
        "scaler:flag-misplaced": ViolationKind(
            "`{value}` is a flag, and lands in the `{parameter}` parameter of `{call}`: pass it as `enabled={value}`",
            effect="the scale begins at 1, or at 0 where the flag is false, which makes the weights NaN; no error",
            effect_cases={"parameter=device": "the flag is ignored, so the scaler is always enabled; no error"},
        ),
        "scaler:device-as-scale": ViolationKind(
            "`{call}` is given {value} as its `init_scale`, which must be a number: pass the device as the first "
            "argument of `torch.amp.GradScaler`",
            effect="the first scale() raises TypeError and ends the run",
        ),
        "scaler:wrong-dtype": ViolationKind(
            "`{call}` is enabled for bfloat16, which needs no scaling, and disabled for float16, which does: pass "
            "`enabled=(dtype == torch.float16)`",
            effect="in float16 small gradients become zero; in bfloat16 each step is slower; no error",
        ),
        "scaler:other-device": ViolationKind(
            "`{call}` is for {device} and switches itself off without it, but autocast is entered for {other}: use "
            "`torch.amp.GradScaler('{other}')`",
            effect="float16 trains unscaled, so small gradients become zero; torch only warns",
        ),
        "scaler:zero-scale": ViolationKind(
            "`init_scale={value}` multiplies every loss by a number that is not positive: pass a power of two, or "
            "`enabled=False`",
            effect="a scale of 0 makes the weights NaN in the first step; no error",
        ),
        "scaler:init-scale": ViolationKind(
            "`init_scale={value}` is above 2**24, so the first steps overflow and are skipped: start at the default of "
            "2**16",
            effect="the first steps overflow and are skipped until halving has brought the scale down",
        ),
        "scaler:factors-swapped": ViolationKind(
            "`growth_factor` is {growth} and `backoff_factor` is {backoff}, the wrong way round, so torch raises: "
            "pass both by name"
        ),
        "scaler:growth-factor": ViolationKind(
            "`growth_factor={value}` never lets the scale grow, so torch raises: pass a number above 1.0, by default "
            "2.0"
        ),
        "scaler:backoff-factor": ViolationKind(
            "`backoff_factor={value}` does not lower the scale after an overflow, so torch raises: "
            "pass a number below 1.0, by default 0.5"
        ),
        "scaler:zero-backoff": ViolationKind(
            "`backoff_factor={value}` makes the scale zero or negative after the first overflow: "
            "pass a number between 0.0 and 1.0, by default 0.5",
            effect="after the first overflow the scale is useless, and training is ruined; no error",
        ),
        "scaler:no-growth": ViolationKind(
            "`growth_interval={value}` lets the scale fall but never grow again: pass a positive number of steps, by "
            "default 2000",
            effect="the scale only falls, so more and more small gradients become zero; no error",
        ),
        "scaler:growth-interval": ViolationKind(
            "`growth_interval={value}` raises the scale so often that it overflows and many steps are skipped: pass a "
            "few hundred steps or more, by default 2000",
            effect="up to half of the steps are skipped (94 of 200 with an interval of 1); no error",
        ),
    },
    rationale="""\
`torch.amp.GradScaler` takes the device first, unlike the older `torch.cuda.amp.GradScaler`. A number in that position
becomes the device and is ignored. A growth interval that is too short raises the scale into the next overflow again and
again, and every overflow costs a step. A growth interval that is not positive never raises it. The limits of 50 steps
and 2^24 are this tool's judgement; torch sets none. `ShardedGradScaler` takes `backoff_factor` before `growth_factor`,
in the opposite order of `GradScaler`. A scaler is for one type of device, by default CUDA, and switches itself off if
that device is missing. If autocast is for another device, float16 then trains unscaled.
""",
    harm="""\
`torch.amp.GradScaler(1024.)` is enabled on the device 1024.0 and starts at a scale of 65536, without an error; the
older `GradScaler(True)` starts at 1.0. With `growth_interval=1`, 94 of 200 steps were skipped; with 10, 7 of 200; with
0, the scale never grew. Factors beyond their limits raise AssertionError.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(1024.0)  # AMP216
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Name the arguments: `torch.amp.GradScaler('cuda', init_scale=..., growth_interval=...)`.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler: arguments",
        "torch/amp/grad_scaler.py and torch/distributed/fsdp/sharded_grad_scaler.py: the order of the parameters",
        "measured: skipped steps at growth intervals 0, 1 and 10",
    ),
)
