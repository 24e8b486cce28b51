"""Names of torch are recognized with every form of import, and similar names are not."""

from __future__ import annotations

from itertools import product
from textwrap import dedent

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

#: Import, and the resulting name of the scaler's class.
SCALERS = [
    ("import torch", "torch.amp.GradScaler"),
    ("import torch.amp", "torch.amp.GradScaler"),
    ("import torch as t", "t.amp.GradScaler"),
    ("import torch.amp as A", "A.GradScaler"),
    ("from torch import amp", "amp.GradScaler"),
    ("from torch import amp as A", "A.GradScaler"),
    ("from torch.amp import GradScaler", "GradScaler"),
    ("from torch.amp import GradScaler as S", "S"),
    ("from torch.amp import (\n    GradScaler as S,\n)", "S"),
    ("from torch.amp.grad_scaler import GradScaler", "GradScaler"),
    ("import torch.amp.grad_scaler", "torch.amp.grad_scaler.GradScaler"),
    ("import torch\nS = torch.amp.GradScaler", "S"),
    ("import torch\nA = torch.amp", "A.GradScaler"),
    ("from torch.amp import *", "GradScaler"),
    ("try:\n    from torch.amp import GradScaler\nexcept ImportError:\n    GradScaler = None", "GradScaler"),
    ("if True:\n    from torch.amp import GradScaler", "GradScaler"),
]
#: Import, and the resulting name of autocast.
REGIONS = [
    ("import torch", "torch.autocast"),
    ("import torch", "torch.amp.autocast"),
    ("import torch as t", "t.autocast"),
    ("from torch import autocast", "autocast"),
    ("from torch import autocast as ac", "ac"),
    ("from torch.amp import autocast", "autocast"),
    ("from torch.amp import autocast as ac", "ac"),
    ("import torch.amp as A", "A.autocast"),
    ("from torch import amp", "amp.autocast"),
    ("from torch.amp.autocast_mode import autocast", "autocast"),
    ("import torch\nregion = torch.autocast", "region"),
    ("from torch.amp import *", "autocast"),
]
CLIPS = [
    ("import torch", "torch.nn.utils.clip_grad_norm_"),
    ("from torch import nn", "nn.utils.clip_grad_norm_"),
    ("import torch.nn as nn", "nn.utils.clip_grad_norm_"),
    ("import torch.nn.utils as U", "U.clip_grad_norm_"),
    ("from torch.nn import utils", "utils.clip_grad_norm_"),
    ("from torch.nn.utils import clip_grad_norm_", "clip_grad_norm_"),
    ("from torch.nn.utils import clip_grad_norm_ as clip", "clip"),
    ("from torch.nn.utils.clip_grad import clip_grad_norm_", "clip_grad_norm_"),
    ("from torch.nn.utils import clip_grad", "clip_grad.clip_grad_norm_"),
    ("import torch\nclip = torch.nn.utils.clip_grad_norm_", "clip"),
]
OPTIMIZERS = [
    ("import torch", "torch.optim.AdamW"),
    ("from torch import optim", "optim.AdamW"),
    ("import torch.optim as optim", "optim.AdamW"),
    ("from torch.optim import AdamW", "AdamW"),
    ("from torch.optim import AdamW as Opt", "Opt"),
    ("from torch.optim.adamw import AdamW", "AdamW"),
    ("import torch.optim", "torch.optim.AdamW"),
]


def script(
    scaler: tuple[str, str] = SCALERS[0],
    region: tuple[str, str] = REGIONS[0],
    clip: tuple[str, str] = CLIPS[0],
    optimizer: tuple[str, str] = OPTIMIZERS[0],
    *,
    unscale: bool = False,
    inside: bool = False,
) -> str:
    """Return a training script with these spellings that clips too early unless ``unscale``.

    With ``inside``, the backward runs in the region.
    """
    imports = "\n".join(dict.fromkeys(spelling[0] for spelling in (scaler, region, clip, optimizer)))
    backward = "sc.scale(out).backward()"
    lines = [
        f"opt = {optimizer[1]}(net.parameters(), lr=1e-3)",
        f'sc = {scaler[1]}("cuda")',
        "for x, y in data:",
        "    opt.zero_grad()",
        f'    with {region[1]}("cuda"):',
        "        out = criterion(net(x), y)",
        f"        {backward}  # AMP103" if inside else f"    {backward}",
        "    sc.unscale_(opt)" if unscale else "",
        f"    {clip[1]}(net.parameters(), 1.0)" + ("" if unscale else "  # AMP201"),
        "    sc.step(opt)",
        "    sc.update()",
    ]
    return f"{imports}\nfrom mine import net, data, criterion\n" + "\n".join(lines) + "\n"


def agrees(source: str) -> None:
    findings = check_source(source, "train.py")
    assert places(findings) == marks(source), f"{shown(findings)}\n{source}"


def in_function(source: str) -> str:
    """Return the script with the code below its imports as the body of an uncalled function."""
    head, last, body = source.partition("from mine import net, data, criterion\n")
    return head + last + "def train():\n" + "".join(f"    {line}\n" for line in body.splitlines())


for_each = pytest.mark.parametrize(("unscale", "inside"), [(False, False), (True, False), (True, True)])


@for_each
@pytest.mark.parametrize("spelling", SCALERS, ids=" / ".join)
def test_spellings_of_the_scaler(spelling: tuple[str, str], unscale: bool, inside: bool) -> None:
    agrees(script(scaler=spelling, unscale=unscale, inside=inside))
    agrees(in_function(script(scaler=spelling, unscale=unscale, inside=inside)))


@for_each
@pytest.mark.parametrize("spelling", REGIONS, ids=" / ".join)
def test_spellings_of_autocast(spelling: tuple[str, str], unscale: bool, inside: bool) -> None:
    agrees(script(region=spelling, unscale=unscale, inside=inside))
    agrees(in_function(script(region=spelling, unscale=unscale, inside=inside)))


@for_each
@pytest.mark.parametrize("spelling", CLIPS, ids=" / ".join)
def test_spellings_of_clipping(spelling: tuple[str, str], unscale: bool, inside: bool) -> None:
    agrees(script(clip=spelling, unscale=unscale, inside=inside))
    agrees(in_function(script(clip=spelling, unscale=unscale, inside=inside)))


@for_each
@pytest.mark.parametrize("spelling", OPTIMIZERS, ids=" / ".join)
def test_spellings_of_optimizers(spelling: tuple[str, str], unscale: bool, inside: bool) -> None:
    agrees(script(optimizer=spelling, unscale=unscale, inside=inside))
    agrees(in_function(script(optimizer=spelling, unscale=unscale, inside=inside)))


@pytest.mark.parametrize(("scaler", "region"), list(product(SCALERS[::3], REGIONS[::3])))
def test_spellings_together(scaler: tuple[str, str], region: tuple[str, str]) -> None:
    agrees(script(scaler, region, CLIPS[3], OPTIMIZERS[1]))


OLD = [
    ("from torch.cuda.amp import GradScaler, autocast", "GradScaler", "autocast"),
    ("from torch.cuda.amp import GradScaler as S, autocast as ac", "S", "ac"),
    ("from torch.cuda import amp", "amp.GradScaler", "amp.autocast"),
    ("from torch.cuda import amp as A", "A.GradScaler", "A.autocast"),
    ("import torch.cuda.amp as amp", "amp.GradScaler", "amp.autocast"),
    ("import torch", "torch.cuda.amp.GradScaler", "torch.cuda.amp.autocast"),
    ("import torch as t", "t.cuda.amp.GradScaler", "t.cuda.amp.autocast"),
    ("import torch.cuda as C", "C.amp.GradScaler", "C.amp.autocast"),
    ("from torch import cuda", "cuda.amp.GradScaler", "cuda.amp.autocast"),
]


@pytest.mark.parametrize(("imports", "scaler", "region"), OLD, ids=[row[0] for row in OLD])
def test_the_old_entry_points_are_deprecated_and_followed(imports: str, scaler: str, region: str) -> None:
    agrees(
        f"""\
import torch.optim
{imports}
from mine import net, data, criterion
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sc = {scaler}()  # AMP901
for x, y in data:
    opt.zero_grad()
    with {region}():  # AMP901
        out = criterion(net(x), y)
        sc.scale(out).backward()  # AMP103
    sc.step(opt)
    sc.update()
"""
    )


SNIPPET = """
scaler = GradScaler()
for x, y in data:
    optimizer.zero_grad()
    with autocast():
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)  # AMP201
    scaler.step(optimizer)
    scaler.update()
"""


def found(source: str) -> set[str]:
    return {finding.code for finding in check_source(dedent(source), "train.py")}


def test_in_a_snippet_without_imports_the_bare_names_are_torchs() -> None:
    assert "AMP201" in found(SNIPPET)
    assert "AMP103" in found(SNIPPET.replace("    scaler.scale", "        scaler.scale"))


@pytest.mark.parametrize("call", ["autocast()", "autocast(True)", "autocast(enabled=flag)", "autocast(dtype=half)"])
def test_which_autocast_a_bare_name_is_is_seen_by_its_arguments(call: str) -> None:
    assert "AMP106" not in found(SNIPPET.replace("autocast()", call))
    assert "AMP106" not in found("from torch.cuda.amp import *\n" + SNIPPET.replace("autocast()", call))
    assert "AMP106" in found("from torch.amp import autocast\n" + SNIPPET.replace("autocast()", call))


def test_names_of_the_file_itself_are_its_own() -> None:
    """A class called autocast in the file is no region, and a class called GradScaler scales nothing."""
    assert not found(
        """
        from mine import model, data, criterion, optimizer

        class autocast:
            def __init__(self, device):
                self.device = device
            def __enter__(self):
                return self
            def __exit__(self, *exc):
                return False

        for x, y in data:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
        """
    )


@pytest.mark.parametrize(
    "imports",
    [
        "from apex.amp import autocast, GradScaler",
        "from paddle.amp import auto_cast as autocast, GradScaler",
        "from jax_amp import autocast, GradScaler",
        "import tensorflow as torch\nautocast, GradScaler = torch.autocast, torch.GradScaler",
    ],
)
def test_names_of_other_packages_are_not_torchs(imports: str) -> None:
    source = f"""\
{imports}
from mine import model, data, criterion, optimizer
autocast("gpu")
for x, y in data:
    with autocast("cuda", True):
        loss = criterion(model(x), y)
        loss.backward()
"""
    assert not found(source)


REBOUND = """\
import torch
from mine import net, data, criterion
torch_autocast = torch.autocast

{before}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sc = torch.amp.GradScaler("cuda")
for x, y in data:
    opt.zero_grad()
    with {region}:
        out = criterion(net(x), y)
        sc.scale(out).backward(){mark}
    sc.step(opt)
    sc.update()
"""


@pytest.mark.parametrize(
    ("before", "region"),
    [
        ("", 'torch_autocast("cuda")'),
        ("def amp():\n    return torch.autocast('cuda')", "amp()"),
        ("class Amp(torch.autocast):\n    pass", 'Amp("cuda")'),
        ("amp = lambda **options: torch.autocast('cuda', **options)", "amp(dtype=torch.float16)"),
        ("options = dict(device_type='cuda', dtype=torch.float16)", "torch.autocast(**options)"),
        ("options = ('cuda',)", "torch.autocast(*options)"),
        ("device = torch.device('cuda')", "torch.autocast(device.type)"),
        ("device = 'cuda' if torch.cuda.is_available() else 'cpu'", "torch.autocast(device, dtype=torch.float16)"),
        ("import functools\namp = functools.partial(torch.autocast, 'cuda')", "amp()"),
        ("from functools import partial\namp = partial(torch.autocast, 'cuda')", "amp(enabled=True)"),
        ("getter = getattr(torch, 'autocast')", "getter('cuda')"),
    ],
)
def test_autocast_under_another_name(before: str, region: str) -> None:
    agrees(REBOUND.format(before=before, region=region, mark="  # AMP103"))


@pytest.mark.parametrize(
    "import_",
    [
        "from contextlib import contextmanager\n@contextmanager",
        "from contextlib import contextmanager as cm\n@cm",
        "import contextlib\n@contextlib.contextmanager",
        "import contextlib as c\n@c.contextmanager",
    ],
)
def test_context_managers_may_yield_inside_a_region(import_: str) -> None:
    helper = "def amp():\n    with torch.autocast('cuda'):\n        yield"
    source = REBOUND.format(before=f"{import_}\n{helper}", region="amp()", mark="  # AMP103")
    agrees(source)
    agrees(source.replace("        sc.scale(out).backward()  # AMP103", "    sc.scale(out).backward()"))


@pytest.mark.parametrize(
    "null",
    [
        "from contextlib import nullcontext\nnull = nullcontext()",
        "from contextlib import nullcontext as n\nnull = n()",
        "import contextlib\nnull = contextlib.nullcontext()",
        "from contextlib import suppress\nnull = suppress()",
    ],
)
def test_null_contexts_open_no_region(null: str) -> None:
    outside = REBOUND.format(before=null, region="null", mark="")
    agrees(outside.replace("criterion(net(x), y)", "criterion(net(x), y)  # AMP110"))
    agrees(
        REBOUND.format(
            before=f"{null}\nflag = len(data) > 3\nctx = torch.autocast('cuda') if flag else null",
            region="ctx",
            mark="  # AMP103",
        )
    )


@pytest.mark.parametrize(
    "functional",
    [
        ("import torch.nn.functional as F", "F.binary_cross_entropy"),
        ("from torch.nn import functional as F", "F.binary_cross_entropy"),
        ("from torch.nn import functional", "functional.binary_cross_entropy"),
        ("from torch.nn.functional import binary_cross_entropy", "binary_cross_entropy"),
        ("from torch.nn.functional import binary_cross_entropy as bce", "bce"),
        ("from torch import nn", "nn.functional.binary_cross_entropy"),
        ("from torch import nn\nbce = nn.BCELoss()", "bce"),
        ("from torch.nn import BCELoss", "BCELoss()"),
        ("from torch.nn import BCELoss as B\ncriteria = {'bce': B()}", "criteria['bce']"),
    ],
    ids=" / ".join,
)
def test_spellings_of_a_loss(functional: tuple[str, str]) -> None:
    imports, call = functional
    agrees(
        f"""\
import torch
{imports}

def compute_loss(model, x, y):
    with torch.autocast("cuda"):
        return {call}(model(x), y)  # AMP504
"""
    )


@pytest.mark.parametrize(
    "half",
    [
        ("import torch", "torch.bfloat16"),
        ("from torch import bfloat16", "bfloat16"),
        ("from torch import bfloat16 as bf", "bf"),
        ("import torch as t", "t.bfloat16"),
        ("import torch\nDTYPE = torch.bfloat16", "DTYPE"),
        ("import torch\nDTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}", "DTYPES['bf16']"),
    ],
    ids=" / ".join,
)
def test_spellings_of_a_dtype(half: tuple[str, str]) -> None:
    imports, dtype = half
    agrees(
        f"""\
import torch.amp
from torch.optim import SGD
{imports}
from torch.nn import Linear
from torch.nn.functional import cross_entropy as criterion
from mine import data
net = Linear(8, 2)
opt = SGD(net.parameters(), lr=0.1)
sc = torch.amp.GradScaler("cuda")
for x, y in data:
    opt.zero_grad()
    with torch.autocast("cuda", dtype={dtype}):
        out = criterion(net(x), y)
    sc.scale(out).backward()  # AMP503
    sc.step(opt)
    sc.update()
"""
    )


@pytest.mark.parametrize("imported", ["optimizer", "scaler", "model", "loader", "criterion", "nothing"])
@pytest.mark.parametrize(
    "how", ["from mine import {}", "import mine\n{0} = mine.{0}", "import mine\n{} = mine.build()"]
)
def test_what_another_file_makes_is_known_by_its_use(imported: str, how: str) -> None:
    """An object that a scaler steps is an optimizer, and an object that scales and steps is a scaler, from any file."""
    made = {
        "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "scaler": 'scaler = torch.amp.GradScaler("cuda")',
        "model": "model = torch.nn.Linear(8, 2).cuda()",
        "loader": "loader = torch.utils.data.DataLoader([])",
        "criterion": "criterion = torch.nn.CrossEntropyLoss()",
        "nothing": "nothing = None",
    }
    order = ["model", "optimizer", "scaler", "loader", "criterion"]
    setup = "\n".join(how.format(name) if name == imported else made[name] for name in order)
    agrees(
        f"""\
import torch
{setup}
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
    scaler.step(optimizer)
    scaler.update()
"""
    )


@pytest.mark.parametrize("name", ["Scale", "Multiply", "F1", "x"])
@pytest.mark.parametrize("parameter", ["factor", "scale", "v"])
def test_deprecated_decorators_are_found_whatever_their_class_is_called(name: str, parameter: str) -> None:
    agrees(
        f"""\
import torch
from torch.cuda.amp import custom_bwd, custom_fwd as forward_rule

class {name}(torch.autograd.Function):
    @staticmethod
    @forward_rule  # AMP901
    def forward(ctx, x, {parameter}):
        return x * {parameter}

    @staticmethod
    @custom_bwd  # AMP901
    def backward(ctx, grad):
        return grad, None
"""
    )


@pytest.mark.parametrize("name", ["autocast", "amp_step", "f", "v1"])
def test_a_region_is_checked_whatever_the_function_around_it_is_called(name: str) -> None:
    agrees(
        f"""\
from torch import autocast as a, device as d, float16 as h, where as w

def {name}_one(model, x):
    with a(dtype=h):  # AMP106
        return model(x)

@a(d("cuda"))  # AMP106
def {name}_two(model, x):
    return model(x)

class {name}_three:
    @a("cuda", dtype=h)  # AMP105
    def batches(self, xs):
        for x in xs:
            yield x
"""
    )


@pytest.mark.parametrize("caught", ["", " Exception", " AttributeError"])
def test_a_try_provides_for_an_old_torch_only_where_it_names_it(caught: str) -> None:
    agrees(
        f"""\
import torch

def provided(flag):
    try:
        return torch.cuda.amp.autocast(enabled=flag)
    except{caught}:
        return torch.cpu.amp.autocast(enabled=flag)

def old(flag):
    return torch.cuda.amp.autocast(enabled=flag)

def handled(flag):
    try:
        return torch.amp.autocast("cuda", enabled=flag)
    except{caught}:
        return old(flag)
"""
    )
    agrees(
        f"""\
import torch

def forward(model, x, flag):
    with torch.cuda.amp.autocast(enabled=flag):  # AMP901
        return model(x)

def main(model, x):
    try:
        forward(model, x, True)
    except{caught}:
        print("failed")
"""
    )
