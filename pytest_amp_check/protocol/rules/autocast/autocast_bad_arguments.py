"""AMP106 autocast-bad-arguments."""

from __future__ import annotations

from collections.abc import Mapping

from ...event_graph import Program
from ...events import AutocastNew, Symbol
from ...fix import SAFE
from ...rule import BOTH, ERROR, INFO, WARNING, Labels, Rule, ViolationKind
from ...torch_api import AUTOCAST_DEVICES, DTYPES, find_entry

#: Device types of torch or its users without autocast. A name missing here may be a vendor's own back end.
_NO_AUTOCAST = frozenset("gpu amd fpga hip ideep lazy meta mkldnn nvidia opencl opengl rocm tpu ve vulkan".split())


def _check_arguments(event: AutocastNew, program: Program) -> Labels:
    """Check the arguments of an autocast in the order of torch: first the binding, then each argument."""
    entry = find_entry(event.callable)
    if entry is None:
        return
    arguments: Mapping[str, object] = event.arguments
    if event.excess:
        yield "autocast:too-many", {"takes": str(len(entry.parameters))}
    for name in arguments:
        if name not in entry.parameters and not name.startswith("*"):
            yield "autocast:unknown-argument", {"argument": name, "known": ", ".join(entry.parameters)}
    device = entry.attributes.get("device")
    if event.failed_comparison is not None:
        yield "autocast:device-compared", event.failed_comparison
    if device is None:
        # A star may pass any argument, so an absent device is not certainly missing.
        if "device_type" in arguments:
            yield from _check_device(arguments["device_type"])
            device = arguments["device_type"]
        elif not any(name.startswith("*") for name in arguments):
            yield "autocast:no-device", {}
    if event.flag_as_dtype:
        yield "autocast:bool-dtype", {"value": f"the flag {event.flag_as_dtype}", "enabled": str(event.flag_as_dtype)}
    yield from _check_dtype(arguments.get("dtype"), device, arguments.get("enabled", True) is False)
    yield from _check_enabled(arguments.get("enabled", True), entry.attributes.get("device"))
    cache = arguments.get("cache_enabled")
    if cache is not None and not isinstance(cache, (bool, Symbol)):
        yield "autocast:not-a-bool", {"argument": "cache_enabled", "value": repr(cache)}


def _check_device(value: object) -> Labels:
    if isinstance(value, Symbol):
        if value == "torch.device()":
            yield "autocast:device-object", {}
        elif value in DTYPES:
            yield "autocast:not-a-device", {"value": str(value)}
        return
    if not isinstance(value, str):
        yield "autocast:not-a-device", {"value": repr(value)}
        return
    kind, colon, index = value.partition(":")
    if not kind or kind != kind.lower() or kind in _NO_AUTOCAST or (colon and not index.isdecimal()):
        yield "autocast:unknown-device", {"device": repr(value)}
    elif colon:
        yield "autocast:indexed-device", {"device": repr(value), "kind": repr(kind)}


def _check_dtype(value: object, device: object, disabled: bool) -> Labels:
    if value is None:
        return
    if not isinstance(value, Symbol):
        if isinstance(value, str):
            yield "autocast:string-dtype", {"value": repr(value)}
        else:
            yield "autocast:bool-dtype", {"value": repr(value), "enabled": repr(bool(value))}
        return
    if disabled or not isinstance(device, str):
        return
    kind = device.partition(":")[0]
    dtype = DTYPES.get(value)
    # CUDA takes any dtype: autocast("cuda", dtype=torch.float32) forces its listed ops into float32 and is in use.
    known = AUTOCAST_DEVICES.get(kind)
    if dtype in ("float32", "float64") and known is not None and not known.has_own_dtypes and kind != "cuda":
        yield "autocast:unsupported-dtype", {"dtype": str(value), "device": kind}


def _check_enabled(value: object, device: object) -> Labels:
    if isinstance(value, bool):
        return
    if isinstance(value, Symbol):
        if value in DTYPES:
            yield "autocast:dtype-as-enabled", {"value": str(value)}
        elif value == "torch.device()":
            yield "autocast:device-as-enabled", {"value": "a torch.device"}
    elif isinstance(value, str) and isinstance(device, str):
        yield "autocast:device-as-enabled", {"value": repr(value)}
    else:
        yield "autocast:not-a-bool", {"argument": "enabled", "value": repr(value)}


RULE = Rule(
    "AMP106",
    "autocast-bad-arguments",
    ERROR,
    "The arguments of autocast are rejected by torch, or switch it off.",
    effect="torch raises at this line, which ends the run",
    detected_by=BOTH,
    applicability=SAFE,
    event_checks={AutocastNew: _check_arguments},
    prescan_words=("autocast",),
    violations={
        "autocast:no-device": ViolationKind(
            '`{call}` has no device type, which torch requires: pass `"cuda"` (or `"cpu"`) as the first argument'
        ),
        "autocast:device-object": ViolationKind(
            "`{call}` is given a torch.device, which torch rejects: pass the device type, as in `device.type`"
        ),
        "autocast:not-a-device": ViolationKind(
            '`{call}` is given {value} as its device type, which torch rejects: pass a string such as "cuda" first'
            " and the other arguments by name"
        ),
        "autocast:unknown-device": ViolationKind(
            '`{call}` is given {device}, which is not a device type of autocast: pass "cuda", "cpu", "xpu" or "mps" '
            "in lower case"
        ),
        "autocast:indexed-device": ViolationKind(
            "`{call}` is given {device}, whose index skips torch's checks for CUDA and bfloat16: pass {kind}",
            INFO,
            effect="on a GPU it works; without CUDA or bfloat16 the region stays on, and torch's warning is missing",
        ),
        "autocast:device-compared": ViolationKind(
            "`{call}` never runs on CUDA, because `{test}` compares a torch.device with a string, which is never "
            "equal: compare `{device}.type`",
            WARNING,
            effect="training runs without autocast on every machine: slow and memory-hungry, no error",
        ),
        "autocast:bool-dtype": ViolationKind(
            "`{call}` is given {value} as its dtype, which fails when the region is entered: write `enabled={enabled}`",
            effect="torch raises TypeError when the region is entered, which ends the run",
        ),
        "autocast:string-dtype": ViolationKind(
            "`{call}` is given the string {value} as its dtype, which fails when the region is entered: pass a dtype "
            "object, such as `torch.float16`",
            effect="torch raises TypeError when the region is entered, which ends the run",
        ),
        "autocast:unsupported-dtype": ViolationKind(
            "`{call}` is given `{dtype}`, which {device} autocast does not support, so autocast switches itself off: "
            "pass `torch.bfloat16` or `torch.float16`, or write `enabled=False`",
            effect="one warning, then training runs in float32, slow and memory-hungry",
        ),
        "autocast:device-as-enabled": ViolationKind(
            "`{call}` takes no device, so {value} lands in `enabled`: call `torch.autocast` with the device type",
            effect="with CUDA, torch raises TypeError when the region is entered; without CUDA, autocast is off",
        ),
        "autocast:dtype-as-enabled": ViolationKind(
            "`{call}` is given `{value}` as `enabled`: write `dtype={value}`",
            effect="with CUDA, torch raises TypeError when the region is entered; without CUDA, autocast is off",
        ),
        "autocast:not-a-bool": ViolationKind(
            "`{call}` is given {value} as `{argument}`, but torch accepts only True or False: pass a bool",
            effect="torch raises TypeError when the region is entered, which ends the run",
        ),
        "autocast:too-many": ViolationKind(
            "`{call}` takes {takes} arguments and is given more, which raises TypeError: pass them by name"
        ),
        "autocast:unknown-argument": ViolationKind(
            "`{call}` has no argument `{argument}`, which raises TypeError: use one of {known}"
        ),
    },
    rationale="""\
`torch.autocast(device_type, dtype, enabled, cache_enabled)` takes the device type first, as a string. The old
`torch.cuda.amp.autocast(enabled, dtype, cache_enabled)` had no device and began with `enabled`. A migration that only
changes the name therefore moves `True` into the device or the dtype. A wrong device raises at once; a wrong dtype or
`enabled` raises when the region is entered. A dtype that the device does not support does not raise: autocast warns and
switches itself off. `dtype=torch.float32` on CUDA is legal, and forces the listed ops into float32. A torch.device
never equals a string, so `device == "cuda"` chooses the CPU, or `enabled=False`, on every machine.
""",
    harm="""\
`autocast(device)` raises ValueError, `autocast("gpu")` RuntimeError, `autocast(True)` ValueError, `autocast("cuda",
True)` TypeError at `__enter__`, not where it is constructed. `autocast("cpu", dtype=torch.float32)` gives one
UserWarning, and the training goes on in float32. On a machine without CUDA, `torch.cuda.amp.autocast("cuda")`
switches itself off without an error and fails only on the GPU. `autocast("cuda:0")` stayed enabled on a machine that
has no CUDA.
""",
    bad_example="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
device = torch.device("cpu")
x = torch.randn(4, 8)


def device_object():
    with torch.autocast(device, dtype=torch.bfloat16):  # AMP106
        return model(x)


def no_device():
    with torch.autocast(dtype=torch.bfloat16):  # AMP106
        return model(x)


def bool_in_the_dtype():
    with torch.autocast("cpu", True):  # AMP106
        return model(x)


def unsupported_dtype():
    with torch.autocast("cpu", dtype=torch.float32):  # AMP106
        return model(x)


for attempt in (device_object, no_device, bool_in_the_dtype, unsupported_dtype):
    try:
        print(attempt.__name__, attempt().dtype)
    except (TypeError, ValueError) as error:
        print(attempt.__name__, error)
""",
    good_example="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
device = torch.device("cpu")
x = torch.randn(4, 8)


def device_type():
    with torch.autocast(device.type, dtype=torch.bfloat16):
        return model(x)


def named_device():
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        return model(x)


def named_enabled():
    with torch.autocast("cpu", enabled=True):
        return model(x)


for attempt in (device_type, named_device, named_enabled):
    print(attempt.__name__, attempt().dtype)
""",
    fix_advice="Pass the device type as a string first (`device.type` of a torch.device) and everything else by name.",
    sources=(
        "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html",
        "PyTorch source: torch/amp/autocast_mode.py",
        "pytorch/torchtitan: the float32 autocast of its expert router",
        "measured with torch 2.13 on the CPU",
    ),
)
