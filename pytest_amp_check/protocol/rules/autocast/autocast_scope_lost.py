"""AMP105 autocast-scope-lost."""

from __future__ import annotations

from ...event_graph import Program
from ...events import ScopeLost
from ...fix import SAFE
from ...rule import ERROR, STATIC, Certainty, Labels, Rule, ViolationKind


def _check_scope_lost(event: ScopeLost, program: Program) -> Labels:
    yield f"scope:{event.how}", {}


RULE = Rule(
    "AMP105",
    "autocast-scope-lost",
    ERROR,
    "An autocast never covers the code it was meant for, or leaks out of it.",
    effect="the code runs in float32, slow and memory-hungry, without the benefits of mixed precision; no error",
    detected_by=STATIC,
    applicability=SAFE,
    event_checks={ScopeLost: _check_scope_lost},
    prescan_words=("autocast",),
    violations={
        "scope:expression": ViolationKind(
            "`{context}` is constructed and dropped, so nothing runs under it: write it in a `with` statement"
            " around the forward pass"
        ),
        "scope:generator": ViolationKind(
            "`{context}` decorates a generator or a coroutine, whose body runs after the region has closed: enter "
            "autocast with `with` inside the body, around each computation"
        ),
        "scope:yield": ViolationKind(
            "`{context}` is still open at a yield or await, so other code runs under autocast: close the region "
            "before the yield or await",
            effect="the code that gets control at the yield runs in low precision, too; no error",
        ),
        "scope:handed-out": ViolationKind(
            "`{context}` is passed to the `with` block and never entered, so nothing runs under it: enter it around "
            "the yield, as in `with {context}(...): yield`",
            certainty=Certainty(is_possible=True),
        ),
        "scope:script": ViolationKind(
            "`{context}` decorates a function that TorchScript compiles, and TorchScript silently drops the "
            "decorator: enter autocast with `with` inside the function"
        ),
    },
    rationale="""\
Autocast is the state of a thread, not of a piece of code. A bare call only constructs an object. A decorator closes its
region when the function returns, and a generator or coroutine returns before its body has run. A `yield` or `await`
inside a region passes the enabled state to the code that runs next. Interleaved generators restore it in the wrong
order. A context manager that yields an autocast object only hands it out: nobody enters it. TorchScript does not see
decorators.
""",
    harm="""\
The bodies of a decorated generator and a decorated coroutine ran in float32. A generator yielded inside a region, and
the code between two `next()` calls on it ran in low precision. Closing two such generators in an interleaved order left
autocast enabled. A scripted forward gave float32 outputs. Nothing raised.
""",
    bad_example="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
batches = [torch.randn(4, 8) for _ in range(2)]


@torch.autocast("cpu", dtype=torch.bfloat16)  # AMP105
def predictions():
    for batch in batches:
        yield model(batch)


def features():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for batch in batches:
            yield model(batch)  # AMP105


with torch.no_grad():
    torch.autocast("cpu", dtype=torch.bfloat16)  # AMP105
    print("bare call:", model(batches[0]).dtype)
    print("decorated generator:", [output.dtype for output in predictions()])
    print("consumer of a yield:", [model(output.float()[:, :1].expand(-1, 8)).dtype for output in features()])
""",
    good_example="""\
import torch
from torch import nn

model = nn.Linear(8, 2)
batches = [torch.randn(4, 8) for _ in range(2)]


def predictions():
    for batch in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(batch)
        yield output


with torch.no_grad():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        print("region:", model(batches[0]).dtype)
    print("generator:", [output.dtype for output in predictions()])
    print("consumer:", [model(output.float()[:, :1].expand(-1, 8)).dtype for output in predictions()])
""",
    fix_advice="Enter autocast in a `with` statement right around the computation, with no yield or await inside.",
    sources=(
        (
            "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html: the autocast state is "
            "thread-local"
        ),
        "PyTorch source: torch/amp/autocast_mode.py",
        "measured with torch 2.4 and 2.13 on the CPU",
    ),
)
