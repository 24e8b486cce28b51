"""Mistakes in further forms in which people write them, each with the right program beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

CASES: dict[str, str] = {}
STEP = """
                sc.step(opt)
                sc.update()"""

# Batches that a list or a generator collects until a window is full.
COLLECTED = {
    "a list": """
            chunk = []
            for batch in loader:
                chunk.append(batch)
                if len(chunk) < k:
                    continue
                opt.zero_grad()
                for x, y in chunk:
                    BODY
                sc.step(opt)
                sc.update()
                chunk = []""",
    "a generator of lists": """
            for chunk in collected(loader, k):
                opt.zero_grad()
                for x, y in chunk:
                    BODY
                sc.step(opt)
                sc.update()""",
    "a generator of slices": """
            for chunk in sliced(loader, k):
                opt.zero_grad()
                for x, y in chunk:
                    BODY
                sc.step(opt)
                sc.update()""",
}
for _name, _loop in COLLECTED.items():
    for _loss, _mark in (("loss", "  # AMP301"), ("loss / len(chunk)", "")):
        _body = f"""\
with torch.autocast("cuda", dtype=torch.float16):
                        loss = nn.functional.cross_entropy(net(x), y)
                    sc.scale({_loss}).backward(){_mark}"""
        CASES[f"batches in {_name}, {_loss}"] = f"""
        === train.py
        import itertools

        import torch
        from torch import nn

        def collected(loader, k):
            chunk = []
            for batch in loader:
                chunk.append(batch)
                if len(chunk) == k:
                    yield chunk
                    chunk = []

        def sliced(loader, k):
            batches = iter(loader)
            while True:
                chunk = list(itertools.islice(batches, k))
                if len(chunk) < k:
                    return
                yield chunk

        def main(net, loader, k=4):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            sc = torch.amp.GradScaler("cuda")
            {_loop.replace("BODY", _body)}
        """
CASES["batches that were collected before the training"] = """
        === train.py
        import torch
        from torch import nn

        def main(net, loader):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            sc = torch.amp.GradScaler("cuda")
            kept = []
            for batch in loader:
                kept.append(batch)
            for epoch in range(10):
                for x, y in kept:
                    opt.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = nn.functional.cross_entropy(net(x), y)
                    sc.scale(loss).backward()
                    sc.step(opt)
                    sc.update()
        """

# The number of a fill stands in the class, in its constructor, or in a default.
for _where, _body, _parameter, _stored in (
    ("the class", "fill = {number}", "", "pass"),
    ("the constructor", "", "", "self.fill = {number}"),
    ("a default", "", ", fill={number}", "self.fill = fill"),
):
    for _number, _mark in (("-1e9", "  # AMP506"), ("-1e4", "")):
        CASES[f"a fill that stands in {_where}: {_number}"] = f"""
        === attention.py
        import torch
        from torch import nn

        class Attention(nn.Module):
            {_body.format(number=_number)}

            def __init__(self, width{_parameter.format(number=_number)}):
                super().__init__()
                self.query = nn.Linear(width, width)
                {_stored.format(number=_number)}

            def forward(self, x, mask):
                q = self.query(x)
                scores = (q @ q.transpose(-2, -1)).masked_fill(mask == 0, self.fill){_mark}
                return scores.softmax(-1)

        def run(x, mask):
            net = Attention(8).cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                return net(x, mask)
        """

# Models that are cast where they are constructed, also before they are moved.
for _cast, _mark in (
    ("Net().bfloat16().cuda()", "  # AMP501"),
    ("Net().cuda().half()", "  # AMP501"),
    ('Net().to("cuda", dtype=torch.bfloat16)', "  # AMP501"),
    ("Net().cuda()", ""),
):
    CASES[f"a model of another file: {_cast}"] = f"""
        === model.py
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 8)

            def forward(self, x):
                return self.fc(x)
        === train.py
        import torch
        from torch import nn

        from model import Net

        def main(loader):
            net = {_cast}{_mark}
            opt = torch.optim.AdamW(net.parameters(), lr=1e-5)
            for x, y in loader:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = nn.functional.mse_loss(net(x), y)
                loss.backward()
                opt.step()
        """
for _asked, _mark in (("bf16", "  # AMP501"), ("fp32", "")):
    CASES[f"a loader of another file that casts for {_asked}"] = f"""
        === load.py
        import torch
        from torch import nn

        def load_model(path, precision):
            net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
            net.load_state_dict(torch.load(path))
            if precision == "bf16":
                net = net.bfloat16(){_mark}
            return net.cuda()
        === train.py
        import torch
        from torch import nn

        from load import load_model

        def main(loader):
            net = load_model("base.pt", "{_asked}")
            opt = torch.optim.AdamW(net.parameters(), lr=1e-5)
            for x, y in loader:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                opt.step()
        """
for _given, _call in (
    ('arguments = dict(max_steps=9); arguments["precision"] = {precision}', "**arguments"),
    ("arguments = dict(max_steps=9, precision={precision})", "**arguments"),
    ("chosen = {precision}", "precision=chosen"),
):
    for _precision, _mark in (('"bf16-true"', "  # AMP501"), ('"bf16-mixed"', "")):
        CASES[f"Lightning's precision in {_given}: {_precision}"] = f"""
        === fit.py
        import lightning as L
        import torch
        from torch import nn

        class Lit(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(10, 10)

            def training_step(self, batch, index):
                x, y = batch
                return nn.functional.cross_entropy(self.net(x), y)

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-5)

        def main(data):
            {_given.format(precision=_precision)}
            L.Trainer({_call}).fit(Lit(), datamodule=data){_mark}
        """

# A penalty on the weights beside a scaled loss.
for _total, _mark in (
    ("sc.scale(loss) + penalty", "  # AMP205"),
    ("sc.scale(loss) + 1e-4 * penalty", "  # AMP205"),
    ("sc.scale(loss + 1e-4 * penalty)", ""),
):
    CASES[f"a penalty on weights: {_total}"] = f"""
        === train.py
        import torch
        from torch import nn

        def main(loader):
            net = nn.Linear(4, 4).cuda()
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            sc = torch.amp.GradScaler("cuda")
            for x, y in loader:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(net(x), y)
                penalty = sum(p.pow(2).sum() for p in net.parameters())
                total = {_total}
                total.backward(){_mark}
                {STEP}
        """

# The scaled loss is read after its graph is gone.
for _kept, _mark in (
    ("scaled.detach()", "  # AMP202"),
    ("loss.detach()", ""),
    ("scaled.detach() / sc.get_scale()", ""),
):
    CASES[f"a sum of {_kept}"] = f"""
        === train.py
        import torch
        from torch import nn

        def main(loader):
            net = nn.Linear(4, 4).cuda()
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            sc = torch.amp.GradScaler("cuda")
            total = 0.0
            for x, y in loader:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(net(x), y)
                scaled = sc.scale(loss)
                scaled.backward()
                total += {_kept}
                {STEP}
            print(total.item() / len(loader)){_mark}
        """

# A checkpoint that is built from names of attributes.
for _names, _mark in (('("net", "opt")', "  # AMP401"), ('("net", "opt", "sc")', "")):
    for _saved in (
        f"torch.save({{name: getattr(self, name).state_dict() for name in KEPT}}, path){_mark}",
        (
            f"state = {{}}\n                for name in KEPT:\n"
            f"                    state[name] = getattr(self, name).state_dict(){_mark}\n"
            "                torch.save(state, path)"
        ),
    ):
        CASES[f"a checkpoint of {_names}: {_saved}"] = f"""
        === train.py
        import torch
        from torch import nn

        KEPT = {_names}

        class Trainer:
            def __init__(self):
                self.net = nn.Linear(4, 4).cuda()
                self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
                self.sc = torch.amp.GradScaler("cuda")

            def save(self, path):
                {_saved}

            def resume(self, path):
                state = torch.load(path)
                for name in KEPT:
                    getattr(self, name).load_state_dict(state[name])

            def fit(self, loader):
                for x, y in loader:
                    self.opt.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = nn.functional.mse_loss(self.net(x), y)
                    self.sc.scale(loss).backward()
                    self.sc.step(self.opt)
                    self.sc.update()
                self.save("last.pt")
        """

# DeepSpeed divides by what its configuration says.
for _loss, _mark in (('loss / CONFIG["gradient_accumulation_steps"]', "  # AMP302"), ("loss", "")):
    CASES[f"DeepSpeed's configuration: {_loss}"] = f"""
        === train.py
        import deepspeed
        from torch import nn

        CONFIG = {{"gradient_accumulation_steps": 8, "fp16": {{"enabled": True}}}}

        def main(loader):
            net = nn.Linear(4, 4)
            engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=CONFIG)
            for x, y in loader:
                loss = nn.functional.mse_loss(engine(x), y)
                engine.backward({_loss}){_mark}
                engine.step()
        """

# A Function of a file that names no autocast, in a project that enters it.
for _decorators, _region, _mark in (
    (("", ""), 'torch.autocast("cuda", dtype=torch.float16)', "  # AMP107"),
    (("@custom_fwd", "@custom_bwd"), 'torch.autocast("cuda", dtype=torch.float16)', ""),
    (("", ""), "open(path)", ""),
):
    _forward, _backward = _decorators
    CASES[f"a Function of another file: {_decorators}, {_region}"] = f"""
        === layers.py
        import torch
        from torch import nn
        from decorators import custom_bwd, custom_fwd

        class Product(torch.autograd.Function):
            @staticmethod
            {_forward}
            def forward(ctx, a, b):{_mark}
                ctx.save_for_backward(a, b)
                return a.mm(b)

            @staticmethod
            {_backward}
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                return grad.mm(b.t()), a.t().mm(grad)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc, self.w = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

            def forward(self, x):
                return Product.apply(self.fc(x), self.w)
        === decorators.py
        from functools import partial

        import torch

        custom_fwd = partial(torch.amp.custom_fwd, device_type="cuda")
        custom_bwd = partial(torch.amp.custom_bwd, device_type="cuda")
        === evaluate.py
        import torch

        from layers import Net

        def evaluate(path, batches):
            net = Net().cuda().eval()
            with {_region}:
                return [net(batch) for batch in batches]
        """

# Frequencies in a buffer, where another file of the package casts models.
for _cast, _mark in (("model.half()", "  # AMP509"), ("model.to(config.dtype)", "  # AMP509"), ("model.cuda()", "")):
    for _used, _own in (("self.inv_freq", True), ("1.0 / 10000 ** (torch.arange(0, 64, 2).float() / 64)", False)):
        CASES[f"frequencies of {_used} and {_cast}"] = f"""
        === rope.py
        import torch
        from torch import nn

        class Rope(nn.Module):
            def __init__(self, dim, base=10000):
                super().__init__()
                inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
                self.register_buffer("inv_freq", inv_freq, persistent=False){_mark if _own else ""}

            def forward(self, x):
                positions = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
                angles = torch.outer(positions, {_used})
                return angles.cos().to(x.dtype)
        === serve.py
        import torch

        def serve(model, config, batches):
            {_cast}
            return [model(batch) for batch in batches]
        """

# A square that a helper of the same file averages.
for _given, _mark in (("out, y.half()", "  # AMP507"), ("out.float(), y", "")):
    CASES[f"a square in a helper: {_given}"] = f"""
        === train.py
        import torch
        from torch import nn

        def l2(pred, target):
            diff = pred - target
            return (diff * diff).mean(){_mark}

        def main(loader):
            net = nn.Linear(8, 1).cuda()
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            sc = torch.amp.GradScaler("cuda")
            for x, y in loader:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    out = net(x)
                    loss = l2({_given})
                sc.scale(loss).backward()
                {STEP}
        """


@pytest.mark.parametrize("name", CASES)
def test_form(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    assert found(tmp_path) == marks(tmp_path), CASES[name]
