"""Rules on what float16 and bfloat16 can hold: weights, gradients, losses and constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..events import (
    BACKWARD,
    EPSILON,
    FILL,
    FRAGILE_MATH,
    LOSS,
    LOW_POSITIONS,
    LOW_SUM,
    MODULE_CAST,
    SCALE,
    Event,
    Program,
)
from ..fix import SAFE
from ..rule import BOTH, ERROR, INFO, STATIC, WARNING, Fault, Rule

_AUTOCAST = "PyTorch documentation: torch.autocast and GradScaler, docs.pytorch.org/docs/stable/amp.html"
_OPS = "PyTorch documentation: Autocast Op Reference, docs.pytorch.org/docs/stable/amp.html#autocast-op-reference"
_MEASURED = "measured with torch 2.13 on the CPU"
_MEASURED_BOTH = "measured with torch 2.4 and 2.13 on the CPU"

_FLOAT16_MAX = 65504.0
#: What is no larger is zero in float16.
_FLOAT16_ZERO = 2.0**-25


def _cast_of_trained(program: Program) -> Iterator[tuple[str, Event, Mapping[str, str], tuple[Event, ...]]]:
    trained = program.facts.get("trained_modules", frozenset())
    scaled = bool(program.facts.get("live_scalers"))
    for graph in program.graphs:
        for node in graph.nodes:
            event = node.event
            if event is None or event.kind != MODULE_CAST or event.subject not in trained:
                continue
            if not event.facts.get("trained", True):
                continue  # a cast for inference, of a module that other code trains
            dtype = event.facts.get("dtype")
            if dtype == "float16" and scaled:
                yield "cast:trained-scaled", event, {"dtype": dtype}, ()
            elif dtype in ("float16", "bfloat16"):
                yield "cast:trained", event, {"dtype": dtype}, ()


def _without_scaler(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    facts = event.facts
    if not facts.get("scaled") and facts.get("alone") and facts.get("dtypes") == {"float16"}:
        yield "backward:no-scaler", {}


def _scaled_bf16(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    if event.facts.get("dtypes") != {"bfloat16"}:
        return
    # enabled=(dtype == torch.float16) is how to share one code path between both dtypes.
    scaler = None if event.subject is None else program.things[event.subject]
    if scaler is None or scaler.facts.get("enabled", True) is True:
        yield "scale:bf16", {}


def _in_a_framework(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    severity = event.facts.get("ambient")
    if severity is not None and event.facts.get("function") == "binary_cross_entropy":
        yield "bce@framework", {"severity": severity}


def _fill(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    value = event.facts.get("value")
    # Infinities are values of float16, and NaN compares false.
    if event.facts.get("eligible") and value is not None and _FLOAT16_MAX < abs(value) < float("inf"):
        yield "fill:overflow", {"value": f"{value:g}", "limit": "min" if value < 0 else "max"}


def _epsilon(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    facts = event.facts
    value = facts["value"]
    doubt = facts["guessed"] or facts["dtype"] != "float16"
    values = {"value": f"{value:g}"}
    if value <= _FLOAT16_ZERO:
        yield f"epsilon:{facts['how']}", {**values, "severity": INFO} if doubt else values
    elif facts["divides"] and value < 1 / _FLOAT16_MAX and not doubt:
        yield "epsilon:small", values


def _fragile(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    facts = event.facts
    how, dtype = facts["how"], facts["dtype"]
    # What bfloat16 does not overflow in, it still cancels in: one minus a probability that rounds to one.
    if dtype != "bfloat16" or how == "log-complement":
        doubt = facts["guessed"] or dtype == "half"
        yield f"fragile:{how}", {"severity": INFO} if doubt else {}


def _low_sum(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    dtype = event.facts["dtype"]
    values = {"dtype": "low precision" if dtype == "half" else dtype}
    yield "sum:low", {**values, "severity": INFO} if event.facts["guessed"] else values


def _low_positions(event: Event, program: Program) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield f"positions:{event.facts['how']}", {}


RULES: tuple[Rule, ...] = (
    Rule(
        "AMP501",
        "low-precision-master-weights",
        WARNING,
        "Trained parameters are stored in float16 or bfloat16.",
        faults={
            "cast:trained": Fault(
                "`{call}` stores parameters that are trained in {dtype}, where small updates round to nothing: keep"
                " them in float32 and let autocast choose the dtypes"
            ),
            "cast:trained-scaled": Fault(
                "`{call}` stores parameters that are trained in {dtype}, whose gradients GradScaler refuses to unscale:"
                " keep them in float32 and let autocast choose the dtypes",
                ERROR,
            ),
        },
        why="""\
Mixed precision means low-precision compute on **float32 weights**. A weight in bfloat16 has 8 bits and one in float16
has 11: an update smaller than half the gap to the next representable number is rounded away, and late in training
most are. With a GradScaler, float16 parameters have float16 gradients, and `unscale_` raises on them; a fused
optimizer does not even raise. Frozen weights and inference lose nothing in low precision.
""",
        harm="""\
With weights of standard deviation 0.02, one step left 32 % of the bfloat16 weights unchanged at the learning rate
1e-4 and 88 % at 1e-5 (float16: 4.6 % and 38 %). A bfloat16 parameter of 1.0 was still 1.0 after 100 Adam steps of
1e-3. In float16, Adam's epsilon of 1e-8 is 0: a gradient of 0 made the parameter NaN. With a scaler: `ValueError:
Attempting to unscale FP16 gradients.`
""",
        bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
model = model.to(torch.bfloat16)  # AMP501
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 64, dtype=torch.bfloat16), torch.randn(32, 64, dtype=torch.bfloat16)

before = model.weight.detach().clone()
for _ in range(10):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x).float(), y.float())
    loss.backward()
    optimizer.step()
print("unchanged weights:", (model.weight == before).float().mean().item())
""",
        good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 64), torch.randn(32, 64)

before = model.weight.detach().clone()
for _ in range(10):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print("unchanged weights:", (model.weight == before).float().mean().item())
""",
        fix="Drop the cast, keep the parameters in float32 and run the forward under `torch.autocast`.",
        silent=(
            (
                "the base is frozen and only float32 adapters are trained",
                """\
model = AutoModelForCausalLM.from_pretrained(name).to(torch.bfloat16)
for p in model.parameters():
    p.requires_grad_(False)
adapters = nn.ModuleList(Adapter(layer) for layer in model.model.layers)
optimizer = torch.optim.AdamW(adapters.parameters(), lr=1e-4)
for batch in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = run(model, adapters, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            ),
            (
                "inference",
                """\
model = Net()
model.load_state_dict(torch.load("model.pt"))
model.half().eval()
with torch.inference_mode():
    output = model(inputs.half())
""",
            ),
            (
                "a low-precision copy that is not trained",
                """\
model = Net()
average = copy.deepcopy(model).half().eval()
optimizer = torch.optim.AdamW(model.parameters())
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.lerp_(p.to(a.dtype), 0.01)
""",
            ),
            (
                "the optimizer holds float32 masters made by hand",
                """\
model = Net().half()
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.1)
for inputs, targets in loader:
    criterion(model(inputs.half()).float(), targets).backward()
    for master, p in zip(masters, model.parameters()):
        master.grad, p.grad = p.grad.float(), None
    optimizer.step()
    for master, p in zip(masters, model.parameters()):
        p.data.copy_(master.data)
""",
            ),
            (
                "apex keeps float32 masters",
                """\
from apex.fp16_utils import FP16_Optimizer

model = Net().cuda().half()
optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), dynamic_loss_scale=True)
for inputs, targets in loader:
    optimizer.zero_grad()
    optimizer.backward(criterion(model(inputs.half()).float(), targets))
    optimizer.step()
""",
            ),
            (
                "DeepSpeed keeps float32 masters",
                """\
model = Net().half()
engine, optimizer, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config={"fp16": {"enabled": True}, "optimizer": {"type": "Adam"}}
)
for inputs, targets in loader:
    engine.backward(criterion(engine(inputs.half()), targets))
    engine.step()
""",
            ),
            (
                "Megatron's optimizer keeps float32 masters",
                """\
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

model = GPTModel(config).bfloat16()
optimizer = get_megatron_optimizer(OptimizerConfig(bf16=True, lr=1e-4), [model])
for batch in loader:
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
""",
            ),
            (
                "the mixed precision of FSDP keeps its shards in float32",
                """\
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = FullyShardedDataParallel(Net(), mixed_precision=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
""",
            ),
            (
                "an optimizer that rounds stochastically is made for bfloat16 weights",
                """\
from torchao.optim import AdamW8bit

model = Net().to(torch.bfloat16)
optimizer = AdamW8bit(model.parameters(), lr=1e-4, bf16_stochastic_round=True)
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs.bfloat16()).float(), targets).backward()
    optimizer.step()
""",
            ),
            (
                "only the inputs are cast",
                """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(inputs.to("cuda", torch.bfloat16)), targets)
    loss.backward()
    optimizer.step()
""",
            ),
            (
                "a cast to float32 or to a device",
                """\
model = Net().to("cuda").float()
optimizer = torch.optim.AdamW(model.parameters())
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
""",
            ),
        ),
        sources=(
            _AUTOCAST + ": do not call half() or bfloat16() on the model",
            "PyTorch source: torch/amp/grad_scaler.py",
            _MEASURED_BOTH,
        ),
        readers=BOTH,
        whole=_cast_of_trained,
    ),
    Rule(
        "AMP502",
        "fp16-without-scaler",
        WARNING,
        "float16 autocast trains without gradient scaling.",
        faults={
            "backward:no-scaler": Fault(
                "`{call}` computes gradients in float16 without a GradScaler, so small ones become zero: scale the loss"
                " with `torch.amp.GradScaler`, or use bfloat16"
            ),
        },
        why="""\
float16 has no number between 0 and 6e-8. Gradients of activations, and with them those of the weights, easily are
smaller, more so as the loss falls, and turn into exact zeros. A GradScaler lifts them out of that range before the
backward and divides them again afterwards. bfloat16 has the range of float32 and needs none. `torch.autocast("cuda")`
without a dtype is float16, and so it is for "xpu" and "mps"; on "cpu" it is bfloat16.
""",
        harm="""\
With the loss multiplied by 1, 1e-2, 1e-3 and 1e-4, a share of 0.006 %, 0.42 %, 3.8 % and 51 % of the gradients was
exactly zero, and their relative error 0.0007, 0.027, 0.28 and 2.9. With a scaler: none, and 0.0007 throughout.
""",
        bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = 1e-4 * nn.functional.cross_entropy(model(x), y)
    loss.backward()  # AMP502
    optimizer.step()
    print("zero gradients:", (model[0].weight.grad == 0).float().mean().item())
""",
        good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = 1e-4 * nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("zero gradients:", (model[0].weight.grad == 0).float().mean().item())
""",
        fix=(
            "Create one `torch.amp.GradScaler` and use `scaler.scale(loss).backward()`, `scaler.step(optimizer)` and"
            " `scaler.update()`, or pass `dtype=torch.bfloat16`."
        ),
        silent=(
            (
                "bfloat16 needs no scaler",
                """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
            ),
            (
                "the default dtype on the CPU is bfloat16",
                """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
            ),
            (
                "evaluation in float16",
                """\
@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    with torch.autocast("cuda", dtype=torch.float16):
        return [model(inputs) for inputs in loader]
""",
            ),
            (
                "the dtype is chosen at run time",
                """\
def train(model, loader, optimizer, criterion, dtype):
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
""",
            ),
            (
                "autocast may be switched off",
                """\
def train(model, loader, optimizer, scaler, criterion, use_amp):
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            loss = criterion(model(inputs), targets)
        if use_amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
""",
            ),
            (
                "the scaler sits in a wrapper that does all three steps",
                """\
from timm.utils import NativeScaler

loss_scaler = NativeScaler()
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
""",
            ),
            (
                "the backward is accelerate's",
                """\
accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
""",
            ),
            (
                "the scaler lives in another class, which makes the loss it returns",
                """\
class Amp:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda")

    def scale(self, loss):
        return self.scaler.scale(loss)

    def step(self, optimizer):
        self.scaler.step(optimizer)
        self.scaler.update()


amp = Amp()
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = amp.scale(criterion(model(inputs), targets))
    loss.backward()
    amp.step(optimizer)
""",
            ),
            (
                "a subclass of GradScaler",
                """\
class LoggingScaler(torch.amp.GradScaler):
    def update(self, new_scale=None):
        super().update(new_scale)
        print(self.get_scale())


scaler = LoggingScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "the scaler is imported from another module of the project",
                """\
from training.state import scaler

for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
        ),
        sources=(_AUTOCAST + ": Gradient Scaling", _MEASURED),
        readers=BOTH,
        on={BACKWARD: _without_scaler},
    ),
    Rule(
        "AMP503",
        "scaler-with-bf16",
        INFO,
        "A GradScaler has nothing to do in a bfloat16 training.",
        faults={
            "scale:bf16": Fault(
                "`{scaler}` scales a bfloat16 loss, which needs no scaling: drop the scaler, or construct it with"
                " `enabled=(dtype == torch.float16)`"
            ),
        },
        why="""\
bfloat16 has the exponent of float32: gradients that survive in float32 survive in bfloat16, so scaling them gains
nothing. It does no harm either; that a scale of 65536 makes bfloat16 overflow is a tale, its largest number is
3.39e38. What it costs is a pass over all gradients and a wait for the device at every step.
""",
        harm="""\
Twenty steps in bfloat16 were bit-identical with and without the scaler. Each step with it pays one more pass over the
gradients and one `.item()`, which makes the CPU wait for the GPU.
""",
        bad="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()  # AMP503
    scaler.step(optimizer)
    scaler.update()
""",
        good="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        fix="Call `loss.backward()` and `optimizer.step()`, or enable the scaler for float16 only.",
        silent=(
            (
                "enabled for float16 only",
                """\
dtype = torch.bfloat16
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == torch.float16))
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=dtype):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
""",
            ),
            (
                "the dtype is chosen at run time",
                """\
dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=dtype):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
""",
            ),
            (
                "float16",
                """\
scaler = torch.amp.GradScaler("cuda")
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "the bfloat16 path goes around the scaler",
                """\
scaler = torch.amp.GradScaler("cuda") if args.dtype == "float16" else None
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=DTYPES[args.dtype]):
        loss = criterion(model(inputs), targets)
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
""",
            ),
        ),
        sources=(_AUTOCAST, "karpathy/nanoGPT, train.py: the scaler is enabled for float16 only", _MEASURED),
        readers=BOTH,
        on={SCALE: _scaled_bf16},
    ),
    Rule(
        "AMP504",
        "bce-under-autocast",
        ERROR,
        "binary_cross_entropy or BCELoss runs inside an autocast region.",
        faults={
            "bce@region": Fault(
                "`{call}` runs under autocast, where torch raises RuntimeError: drop the sigmoid and use"
                " `binary_cross_entropy_with_logits`"
            ),
            "bce@region-cpu": Fault(
                "`{call}` runs under autocast, on probabilities already rounded to 0 or 1: drop the sigmoid and use"
                " `binary_cross_entropy_with_logits`",
                WARNING,
            ),
            "bce@framework": Fault(
                "`{call}` runs under the autocast that Lightning enters in mixed precision, where torch raises"
                " RuntimeError: drop the sigmoid and use `binary_cross_entropy_with_logits`"
            ),
        },
        why="""\
Binary cross entropy takes the logarithm of a probability and of its complement. A sigmoid that ran in low precision
rounds to exactly 1 for logits that are quite ordinary (about 8 in float16), so the complement is 0 and the logarithm
infinite. CUDA, XPU and MTIA autocast therefore refuse the op. CPU autocast runs it in float32, MPS in float16, both
without an error and on probabilities that are rounded already. The variant with logits computes both at once, safely.
""",
        harm="""\
On CUDA: `RuntimeError: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.` In
float16 on the CPU a saturated sigmoid gave a loss of 100 and NaN gradients, where the variant with logits gave 20 and
gradients of 0.5.
""",
        bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64, 1)).float()

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        probability = torch.sigmoid(model(x))
        loss = nn.functional.binary_cross_entropy(probability, y)  # AMP504
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64, 1)).float()

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        fix=(
            "Return logits from the model and use `BCEWithLogitsLoss`; where probabilities are needed, compute the loss"
            " in an `enabled=False` region on `.float()` inputs."
        ),
        silent=(
            (
                "in a region that is switched off, in float32",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    probability = model(inputs)
    with torch.autocast("cuda", enabled=False):
        loss = nn.functional.binary_cross_entropy(probability.float(), targets.float())
scaler.scale(loss).backward()
""",
            ),
            (
                "the variant with logits",
                """\
criterion = nn.BCEWithLogitsLoss()
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(model(inputs), targets)
scaler.scale(loss).backward()
""",
            ),
            (
                "after the region, in float32",
                """\
criterion = nn.BCELoss()
with torch.autocast("cuda", dtype=torch.float16):
    logits = model(inputs)
loss = criterion(torch.sigmoid(logits.float()), targets)
scaler.scale(loss).backward()
""",
            ),
            (
                "a LightningModule whose Trainer trains in float32",
                """\
import lightning as L
import torch.nn.functional as F

class Classifier(L.LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.binary_cross_entropy(self(x).sigmoid(), y)

trainer = L.Trainer(max_epochs=3)
""",
            ),
            (
                "a LightningModule that leaves autocast for it",
                """\
import lightning as L
import torch
import torch.nn.functional as F

class Classifier(L.LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        with torch.autocast("cuda", enabled=False):
            return F.binary_cross_entropy(logits.float().sigmoid(), y)

trainer = L.Trainer(precision="16-mixed")
""",
            ),
            (
                "a training without autocast",
                """\
criterion = nn.BCELoss()
for real, fake in loader:
    optimizer.zero_grad()
    loss = criterion(discriminator(real), torch.ones(len(real), 1))
    loss.backward()
    optimizer.step()
""",
            ),
        ),
        sources=(
            _OPS + ": prefer binary_cross_entropy_with_logits over binary_cross_entropy",
            "PyTorch source: aten/src/ATen/autocast_mode.cpp",
            _MEASURED,
        ),
        readers=BOTH,
        on={LOSS: _in_a_framework},
    ),
    Rule(
        "AMP505",
        "eps-underflow",
        WARNING,
        "An epsilon below the range of float16 protects nothing.",
        faults={
            "epsilon:added": Fault(
                "`{sum}` adds {value} to a float16 tensor, where it is 0: cast the tensor with `.float()` first, or use"
                " an epsilon of 1e-6 to 1e-4"
            ),
            "epsilon:clamped": Fault(
                "`{sum}` keeps a float16 tensor above {value}, which is 0 there: cast the tensor with `.float()` first,"
                " or use a bound of 1e-6 to 1e-4"
            ),
            "epsilon:small": Fault(
                "`{sum}` keeps a float16 divisor above {value} only, by which ordinary numbers divide to infinity: cast"
                " it with `.float()` first, or use an epsilon of 1e-4",
                INFO,
            ),
        },
        why="""\
The smallest number that float16 has is 6e-8, and what is no larger than 3e-8 rounds to zero. An epsilon of 1e-8 or
1e-12 that is added to a float16 tensor, or that such a tensor is clamped to, is zero: the division, the logarithm or
the root behind it sees the zero that it was to be kept from. That the logarithm itself runs in float32 on CUDA does not
help, since the sum was made before. bfloat16 has the range of float32 and keeps such numbers.
""",
        harm="""\
In float16, 1e-8 is 0: `0 / (0 + 1e-8)` was NaN, `log(0 + 1e-12)` and `log` of `clamp(min=1e-8)` -inf, and
`rsqrt(0 + 1e-10)` infinite, where float32 gave 0, -27.6, -18.4 and 1e5. With an epsilon of 1e-7, 1e-6 or 1e-5 in the
divisor, 512 / epsilon was infinite.
""",
        bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.zeros(2, 8)

with torch.autocast("cpu", dtype=torch.float16):
    y = model(x) - model(x)
    direction = y / (y.abs() + 1e-8)  # AMP505
    level = y.abs().clamp(min=1e-12).log()  # AMP505
print("finite:", direction.isfinite().all().item(), level.isfinite().all().item())
""",
        good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.zeros(2, 8)

with torch.autocast("cpu", dtype=torch.float16):
    y = (model(x) - model(x)).float()
    direction = y / (y.abs() + 1e-8)
    level = y.abs().clamp(min=1e-12).log()
print("finite:", direction.isfinite().all().item(), level.isfinite().all().item())
""",
        fix="Compute the expression on `.float()`, or use an epsilon that float16 has, 1e-6 to 1e-4.",
        silent=(
            (
                "the epsilon of an optimizer, whose parameters are float32",
                """\
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
            ),
            (
                "the epsilon of a norm layer, which computes in float32",
                """\
projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
    y = torch.nn.functional.layer_norm(y, (8,), eps=1e-12)
""",
            ),
            (
                "bfloat16 has the range of float32",
                """\
projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = projection(inputs)
    y = y / (y.std() + 1e-8)
""",
            ),
            (
                "the operand is cast to float32",
                """\
projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs).float()
    y = y / (y.std() + 1e-8)
""",
            ),
            (
                "CUDA's autocast computes softmax, norm and sum in float32",
                """\
projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
    entropy = -torch.log(y.softmax(dim=-1) + 1e-12).sum()
    unit = y / (y.norm(dim=-1, keepdim=True) + 1e-8)
    share = y / (y.sum() + 1e-8)
""",
            ),
            (
                "Python floats",
                """\
projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
speed = len(inputs) / (y.mean().item() + 1e-12)
""",
            ),
            (
                "a region that is switched off, on inputs in float32",
                """\
projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
    with torch.autocast("cuda", enabled=False):
        z = y.float()
        z = z / (z.std() + 1e-8)
""",
            ),
            (
                "a function of which nobody knows where it is called",
                """\
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(8, 8)

    def forward(self, inputs):
        y = self.projection(inputs)
        return y / (y.std() + 1e-8)
""",
            ),
            (
                "targets in float32 promote",
                """\
projection = nn.Linear(8, 8)
weights = torch.ones(8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs) * weights
    y = y / (y.std() + 1e-8)
""",
            ),
            (
                "an epsilon that float16 has",
                """\
projection = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = projection(inputs)
    y = y / (y.std() + 1e-4)
    z = torch.sqrt(y.var() + 1e-6)
""",
            ),
        ),
        sources=("PyTorch documentation: torch.finfo, docs.pytorch.org/docs/stable/type_info.html", _MEASURED),
        readers=STATIC,
        on={EPSILON: _epsilon},
    ),
    Rule(
        "AMP506",
        "fill-overflow",
        ERROR,
        "A constant beyond the range of float16 is written into a tensor that may be float16.",
        faults={
            "fill:overflow": Fault(
                "`{call}` writes {value} into a tensor that may be float16, which ends at 65504: write"
                " `torch.finfo(x.dtype).{limit}` of the tensor x instead"
            ),
        },
        why="""\
float16 ends at 65504. `-1e9`, the usual mask of an attention, does not fit: depending on the function and on the
version, torch raises, or writes -inf. A softmax over a row that is masked throughout then is NaN, and the NaN reaches
every parameter. The scores of an attention are float16 under autocast however the inputs were made, since autocast
runs the matmul that makes them in low precision.
""",
        harm="""\
`masked_fill`, `fill_`, `index_fill`, `full_like` and `pad` with 1e9 raise `RuntimeError: value cannot be converted to
type c10::Half without overflow`, on the first float16 batch and not in a float32 test. `torch.where`, `full`,
`new_full` and `x[mask] = c` wrote -inf without a word from torch 2.11 on, and raised in 2.4. The softmax of a fully
masked row was NaN with -inf, and uniform with `torch.finfo(dtype).min`.
""",
        bad="""\
import torch

torch.manual_seed(0)
query, key, value = (torch.randn(2, 4, 8) for _ in range(3))
padding = torch.tensor([[False, False, True, True], [True, True, True, True]])[:, None, :]


def attend_where():
    with torch.autocast("cpu", dtype=torch.float16):
        scores = torch.matmul(query, key.transpose(1, 2))
        scores = torch.where(padding.logical_not(), scores, -1e9)  # AMP506
        return torch.matmul(scores.softmax(-1), value)


def attend_masked_fill():
    with torch.autocast("cpu", dtype=torch.float16):
        scores = torch.matmul(query, key.transpose(1, 2))
        scores = scores.masked_fill(padding, -1e9)  # AMP506
        return torch.matmul(scores.softmax(-1), value)


for attend in (attend_where, attend_masked_fill):
    try:
        print(attend.__name__, "finite:", attend().isfinite().all().item())
    except RuntimeError as error:
        print(attend.__name__, error)
""",
        good="""\
import torch

torch.manual_seed(0)
query, key, value = (torch.randn(2, 4, 8) for _ in range(3))
padding = torch.tensor([[False, False, True, True], [True, True, True, True]])[:, None, :]


def attend_where():
    with torch.autocast("cpu", dtype=torch.float16):
        scores = torch.matmul(query, key.transpose(1, 2))
        scores = torch.where(padding.logical_not(), scores, torch.finfo(scores.dtype).min)
        return torch.matmul(scores.softmax(-1), value)


def attend_masked_fill():
    with torch.autocast("cpu", dtype=torch.float16):
        scores = torch.matmul(query, key.transpose(1, 2))
        scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
        return torch.matmul(scores.softmax(-1), value)


for attend in (attend_where, attend_masked_fill):
    print(attend.__name__, "finite:", attend().isfinite().all().item())
""",
        applicability=SAFE,
        fix='Write `torch.finfo(x.dtype).min`, or `float("-inf")` where no row is masked throughout.',
        silent=(
            (
                "minus infinity is a float16 number",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores.masked_fill(causal_mask, float("-inf"))
    weights = scores.softmax(dim=-1)
""",
            ),
            (
                "the limit of the tensor's own dtype",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
""",
            ),
            (
                "a constant inside the range",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores.masked_fill(mask == 0, -1e4)
""",
            ),
            (
                "bfloat16 holds 1e9",
                """\
with torch.autocast("cuda", dtype=torch.bfloat16):
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores.masked_fill(mask, -1e9)
""",
            ),
            (
                "a float32 mask that is added promotes the scores to float32",
                """\
bias = torch.zeros(length, length).masked_fill(causal_mask, -1e9)
with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1)) + bias
    weights = scores.softmax(dim=-1)
""",
            ),
            (
                "float32 scores",
                """\
with torch.autocast("cuda", dtype=torch.float16):
    scores = torch.matmul(query, key.transpose(-2, -1)).float()
    scores = scores.masked_fill(mask, -1e9)
""",
            ),
            (
                "a model that never sees float16",
                """\
class Attention(nn.Module):
    def forward(self, query, key, mask):
        scores = torch.matmul(query, key.transpose(-2, -1))
        return scores.masked_fill(mask, -1e9).softmax(dim=-1)


model = Attention()
output = model(query, key, mask)
""",
            ),
        ),
        sources=("PyTorch documentation: torch.finfo, docs.pytorch.org/docs/stable/type_info.html", _MEASURED_BOTH),
        readers=STATIC,
        on={FILL: _fill},
    ),
    Rule(
        "AMP507",
        "fragile-low-precision-math",
        WARNING,
        "An expression overflows or cancels in the low precision that autocast gives it.",
        faults={
            "fragile:log-softmax": Fault(
                "`{call}` takes the logarithm of a softmax that is 0 in low precision for all but the largest: use"
                " `log_softmax`"
            ),
            "fragile:log-sigmoid": Fault(
                "`{call}` takes the logarithm of a sigmoid that is 0 in low precision below -17: use `logsigmoid`"
            ),
            "fragile:log-complement": Fault(
                "`{call}` takes the logarithm of one minus a probability that rounds to 1 in low precision: use"
                " `logsigmoid` of the negated logits, or compute it on `.float()`"
            ),
            "fragile:logsumexp": Fault(
                "`{call}` takes the logarithm of a sum of exponentials, which overflow float16 from 11.1 on: use"
                " `torch.logsumexp`"
            ),
            "fragile:squares": Fault(
                "`{call}` averages squares that overflow float16 from 256 on: square `.float()`, or use `mse_loss`"
            ),
            "fragile:variance": Fault(
                "`{call}` gives a variance in float16, which overflows where the deviation reaches 256: compute it on"
                " `.float()`",
                INFO,
            ),
        },
        why="""\
Autocast runs on its list of float32 ops what is known to need it, and everything else in the dtype that it is given.
A product, a mean, a variance and a sigmoid are on no list, so on the output of a linear layer they run in float16: it
ends at 65504, the square of 256, and has 11 bits, in which a probability close to 1 is 1. CUDA's list holds exp, log,
pow, sum, norm and softmax; the CPU's holds none of these, so there they run in float16 too. What stands behind them
then sees an infinity or a zero.
""",
        harm="""\
In float16 the logarithm of a softmax whose logits are 20 apart was -inf (`log_softmax`: -20), that of `sigmoid(-20)`
-inf (`logsigmoid`: -20), and `log(1 - sigmoid(10))` -inf (-10), in bfloat16 as well. `exp(12)` is infinite. The mean
of squares of values of 300 was infinite (90000 in float32), and so was the variance of 0 to 999 (83417).
""",
        bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.randn(16, 8) * 200

with torch.autocast("cpu", dtype=torch.float16):
    y = model(x)
    likelihood = torch.log(torch.softmax(y, dim=-1))  # AMP507
    energy = (y * y).mean()  # AMP507
print("finite:", likelihood.isfinite().all().item(), energy.isfinite().item())
""",
        good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.randn(16, 8) * 200

with torch.autocast("cpu", dtype=torch.float16):
    y = model(x)
    likelihood = torch.log_softmax(y, dim=-1)
    energy = (y.float() * y.float()).mean()
print("finite:", likelihood.isfinite().all().item(), energy.isfinite().item())
""",
        fix=(
            "Use the stable function (`log_softmax`, `logsigmoid`, `logsumexp`, `mse_loss`), or compute the expression"
            " on `.float()`."
        ),
        applicability=SAFE,
        silent=(
            (
                "the operand is cast to float32 first",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = layer(inputs).float()
    energy = (y * y).mean()
    likelihood = torch.log(torch.sigmoid(y))
    spread = y.var(dim=0)
""",
            ),
            (
                "CUDA's autocast computes pow, sum, softmax, exp and log in float32",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = layer(inputs)
    likelihood = torch.log(torch.softmax(y, dim=-1))
    total = torch.log(torch.exp(y).sum(dim=-1))
    energy = ((y - y.mean()) ** 2).mean()
    length = y.pow(2).sum().sqrt()
""",
            ),
            (
                "bfloat16 does not overflow",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = layer(inputs)
    energy = (y * y).mean()
    spread = y.var(dim=0)
    likelihood = torch.log(torch.sigmoid(y))
""",
            ),
            (
                "the maximum is subtracted before the exponential",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cpu", dtype=torch.float16):
    y = layer(inputs)
    highest = y.max(dim=-1, keepdim=True).values
    total = torch.log(torch.exp(y - highest).sum(dim=-1)) + highest.squeeze(-1)
""",
            ),
            (
                "squares of what is bounded",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    p = torch.sigmoid(layer(inputs))
    overlap = (p * p).mean()
    spread = torch.tanh(layer(inputs)).var()
""",
            ),
            (
                "targets in float32 promote",
                """\
layer = nn.Linear(8, 8)
targets = torch.randn(4, 8)
with torch.autocast("cuda", dtype=torch.float16):
    difference = layer(inputs) - targets
    loss = (difference * difference).mean()
""",
            ),
            (
                "the stable functions",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cpu", dtype=torch.float16):
    y = layer(inputs)
    a = torch.nn.functional.log_softmax(y, dim=-1)
    b = torch.nn.functional.logsigmoid(y)
    c = torch.logsumexp(y, dim=-1)
    d = torch.nn.functional.mse_loss(y, targets)
""",
            ),
            (
                "a standard deviation does not overflow",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = layer(inputs)
    spread = y.std(dim=0)
""",
            ),
        ),
        sources=(_OPS, "PyTorch source: ATen/autocast_mode.h", _MEASURED),
        readers=STATIC,
        on={FRAGILE_MATH: _fragile},
    ),
    Rule(
        "AMP508",
        "low-precision-accumulator",
        WARNING,
        "A running sum is kept in float16 or bfloat16.",
        faults={
            "sum:low": Fault(
                "`{sum}` sums over the iterations in {dtype}, which soon stops growing: keep the sum in float32, or"
                " add the tensor's `.item()`"
            ),
        },
        why="""\
A sum stops growing where what is added is smaller than half the gap to the next number: in float16 that is one part
in 2048, in bfloat16 one in 256. A sum that runs over the batches of an epoch, started at a Python zero, takes the dtype
of what is added to it: what autocast computed in low precision stays in low precision. A moving average does the same,
and a tensor of low precision that is added to in place keeps its dtype whatever is added.
""",
        harm="""\
Ten thousand times 1 added up to 2048 in float16 and to 256 in bfloat16. A moving average with a decay of 0.9999 of a
constant 1 was 0.25 and 0.031 after 20,000 steps; it is 0.865.
""",
        bad="""\
import torch
from torch import nn

model = nn.Linear(8, 1)
nn.init.constant_(model.weight, 0.125)
nn.init.zeros_(model.bias)
batches = [torch.ones(4, 8) for _ in range(1000)]

total = 0.0
for x in batches:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        score = model(x).mean()
    total += score  # AMP508
print("sum of 1000 ones:", float(total))
""",
        good="""\
import torch
from torch import nn

model = nn.Linear(8, 1)
nn.init.constant_(model.weight, 0.125)
nn.init.zeros_(model.bias)
batches = [torch.ones(4, 8) for _ in range(1000)]

total = 0.0
for x in batches:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        score = model(x).mean()
    total += score.float()
print("sum of 1000 ones:", float(total))
""",
        fix="Add `.float()` of the tensor or its `.item()`, or start from a float32 tensor.",
        silent=(
            (
                "Python numbers",
                """\
model = nn.Linear(8, 1)
total = 0.0
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        score = model(inputs).mean()
    total += score.item()
""",
            ),
            (
                "a float32 buffer promotes",
                """\
model = nn.Linear(8, 1)
total = torch.zeros(1)
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        score = model(inputs).mean()
    total += score
""",
            ),
            (
                "losses are float32 under autocast",
                """\
model = nn.Linear(8, 1)
total = 0.0
for inputs, targets in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    total += loss.detach()
""",
            ),
            (
                "the terms of one batch",
                """\
model = nn.Linear(8, 1)
for inputs in loader:
    total = 0.0
    with torch.autocast("cuda", dtype=torch.float16):
        parts = model(inputs)
    for i in range(len(parts)):
        total = total + parts[i]
    total.backward()
""",
            ),
            (
                "a stream to which each layer adds",
                """\
layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        stream = layers[0](inputs)
    for layer in layers:
        with torch.autocast("cuda", dtype=torch.float16):
            found = layer(stream)
        stream = stream + found
        stream.add_(found)
""",
            ),
            (
                "a float32 average of low-precision values",
                """\
model = nn.Linear(8, 1)
mean = torch.zeros(1)
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        score = model(inputs).mean()
    mean.mul_(0.99).add_(score, alpha=0.01)
    mean = 0.99 * mean + 0.01 * score
""",
            ),
            (
                "a few terms of one forward",
                """\
layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
head = nn.Linear(8, 8)
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        out = head(inputs)
        for layer in layers:
            out += head(out)
    print(out.shape)
""",
            ),
            (
                "a sum of one iteration",
                """\
model = nn.Linear(8, 1)
for inputs in loader:
    total = 0.0
    with torch.autocast("cuda", dtype=torch.float16):
        score = model(inputs).mean()
    total += score
    total += 0.1 * score
""",
            ),
            (
                "the running statistics of batch norm stay float32",
                """\
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        y = model(inputs)
""",
            ),
        ),
        sources=("PyTorch documentation: torch.finfo, docs.pytorch.org/docs/stable/type_info.html", _MEASURED),
        # A source tells that a sum may stop growing, a run that one of a single element has.
        readers=BOTH,
        on={LOW_SUM: _low_sum},
    ),
    Rule(
        "AMP509",
        "low-precision-positions",
        WARNING,
        "Positions or the angles of a rotary embedding are computed in low precision.",
        faults={
            "positions:angles": Fault(
                "`{call}` multiplies positions by frequencies in an op that autocast runs in low precision, so the"
                " angles are off by radians: compute them in a region with `enabled=False`"
            ),
            "positions:cast": Fault(
                "`{call}` rounds positions to low precision before their sine or cosine is taken: cast what comes out,"
                " not what goes in"
            ),
            "positions:index": Fault(
                "`{call}` rounds indexes to low precision, which has not all of them: keep them as integers"
            ),
        },
        why="""\
float16 has every integer up to 2048 and bfloat16 up to 256; beyond, neighbouring positions become the same number, and
an angle of some hundred radians is known to a radian or so. Autocast runs `einsum` and `matmul` in low precision even
on float32 tensors, and that is how rotary embeddings multiply positions by frequencies. The sine and cosine behind it
run on what is left. An elementwise product of the two stays in float32.
""",
        harm="""\
The angles of 4096 positions and 32 frequencies, multiplied by a matmul under autocast, were wrong by up to 2.2 radians
in float16 and 14.4 in bfloat16, and their cosines by up to 2.0. Of 5000 positions, 3299 were distinct in float16 and
797 in bfloat16.
""",
        bad="""\
import torch

inverse = 10000.0 ** -(torch.arange(0, 64, 2).float() / 64)

with torch.autocast("cpu", dtype=torch.bfloat16):
    positions = torch.arange(4096).float()
    angles = positions[:, None] @ inverse[None, :]  # AMP509
    cosine = angles.cos()
exact = (torch.arange(4096).float()[:, None] * inverse[None, :]).cos()
print("largest error:", (cosine - exact).abs().max().item())
""",
        good="""\
import torch

inverse = 10000.0 ** -(torch.arange(0, 64, 2).float() / 64)

with torch.autocast("cpu", dtype=torch.bfloat16):
    positions = torch.arange(4096).float()
    with torch.autocast("cpu", enabled=False):
        angles = positions[:, None] @ inverse[None, :]
        cosine = angles.cos()
exact = (torch.arange(4096).float()[:, None] * inverse[None, :]).cos()
print("largest error:", (cosine - exact).abs().max().item())
""",
        fix=(
            "Compute angles in a `torch.autocast(..., enabled=False)` region, or by an elementwise product, and cast"
            " their sine and cosine."
        ),
        silent=(
            (
                "in a region that is switched off",
                """\
with torch.autocast("cuda", dtype=torch.bfloat16):
    with torch.autocast("cuda", enabled=False):
        t = torch.arange(4096).float()
        angles = torch.einsum("i,j->ij", t, inverse)
        cosine, sine = angles.cos(), angles.sin()
""",
            ),
            (
                "an elementwise product stays in float32",
                """\
with torch.autocast("cuda", dtype=torch.bfloat16):
    t = torch.arange(4096).float()
    angles = t[:, None] * inverse[None, :]
    cosine, sine = angles.cos(), angles.sin()
    angles = torch.outer(t, inverse)
    cosine = angles.cos()
""",
            ),
            (
                "cast after the cosine",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    x = layer(inputs)
    t = torch.arange(4096).float()
    cosine = (t[:, None] * inverse[None, :]).cos().to(x.dtype)
""",
            ),
            (
                "the bins of an expectation are no positions",
                """\
layer = nn.Linear(8, 16)
with torch.autocast("cuda", dtype=torch.float16):
    p = layer(inputs).softmax(dim=-1)
    distance = p @ torch.arange(16).float()
""",
            ),
            (
                "frequencies that are made of an arange are no positions, nor is a short buffer of them",
                """\
class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inverse", 10000.0 ** -(torch.arange(0, 512, 2).float() / 512))
        self.register_buffer("bins", torch.arange(64).float())

    def forward(self, x, y):
        return (x @ self.inverse).cos() + (y @ self.bins).cos()


rotary = Rotary()
with torch.autocast("cuda", dtype=torch.bfloat16):
    z = rotary(x, y)
""",
            ),
            (
                "computed where the model is made, outside of any region",
                """\
t = torch.arange(4096).float()
angles = torch.einsum("i,j->ij", t, inverse)
cosine = angles.cos()
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = model(inputs, cosine)
""",
            ),
            (
                "as many positions as bfloat16 has",
                """\
layer = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.bfloat16):
    x = layer(inputs)
    t = torch.arange(128).to(x.dtype)
    phase = (t * 0.01).sin()
""",
            ),
        ),
        sources=(
            _OPS,
            "huggingface/diffusers issue 13920 and huggingface/transformers issue 29285",
            _MEASURED,
        ),
        readers=STATIC,
        on={LOW_POSITIONS: _low_positions},
    ),
)
