"""Mistakes of real projects in many shapes: each with the right program beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

CASES: dict[str, str] = {}

# An optimizer of a package that is not read trains parameters in a low dtype.
for _name, _choice in (
    ("alone", "bnb.optim.AdamW8bit(model.parameters())"),
    ("of two", "(bnb.optim.AdamW8bit if args.small else torch.optim.AdamW)(model.parameters())"),
    ("in a group", 'bnb.optim.AdamW8bit([{"params": model.parameters(), "lr": 1e-3}])'),
):
    for _cast, _mark in (
        ("to(torch.float16)", "  # AMP501"),
        ("to(device, dtype=torch.bfloat16)", "  # AMP501"),
        ("to(device)", ""),
        ("requires_grad_(False).to(torch.float16)", ""),
    ):
        CASES[f"optimizer of another package {_name}: {_cast}"] = f"""
        === train.py
        import bitsandbytes as bnb
        import torch
        from torch import nn

        def main(args, device, loader):
            model = nn.Linear(8, 8)
            model = model.{_cast}{_mark}
            optimizer = {_choice}
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        """

# A device compared with a text.
for _name, _lines, _argument, _mark in (
    ("in a variable", 'kind = "cuda" if device == "cuda" else "cpu"', "kind", "  # AMP106"),
    ("in the call", "pass", '"cuda" if device == "cuda" else "cpu"', "  # AMP106"),
    ("by name", "pass", 'device_type="cuda" if "cuda" == device else "cpu"', "  # AMP106"),
    ("as a switch", "pass", '"cuda", enabled=device == "cuda"', "  # AMP106"),
    ("by its type", 'kind = "cuda" if device.type == "cuda" else "cpu"', "kind", ""),
    ("as a text", 'kind = "cuda" if str(device) == "cuda" else "cpu"', "kind", ""),
    ("as another switch", "pin = device == 'cuda'", '"cuda"', ""),
):
    CASES[f"device compared {_name}"] = f"""
    === train.py
    import torch
    from torch import nn

    def epoch(model, device, loader):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            {_lines}
            with torch.autocast({_argument}, dtype=torch.bfloat16):{_mark}
                loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def main(args, loader):
        epoch(nn.Linear(2, 2), torch.device(args.device), loader)
    """
CASES["device compared in an if"] = """
=== train.py
import torch

def main(args, model, x):
    device = torch.device(args.device)
    if device == "cuda":
        kind = "cuda"
    else:
        kind = "cpu"
    with torch.autocast(kind):  # AMP106
        return model(x)
"""
CASES["device of the CPU compared"] = """
=== train.py
import torch

def main(model, x):
    device = torch.device("cpu")
    with torch.autocast("cuda" if device == "cuda" else "cpu"):
        return model(x)
"""


# A banned loss in the forward of a module that its caller runs under autocast.
for _name, _members, _call in (
    ("forward", "def forward(self, x, y):\n                return self.run(x, y)", "pass"),
    ("assigned forward", "pass", "self.forward = self.run"),
    ("one of two forwards", "def other(self, x, y):\n                return x", "self.forward = self.other"),
):
    for _loss, _mark in (
        ("F.binary_cross_entropy(x, y)", "  # AMP504"),
        ("F.binary_cross_entropy_with_logits(x, y)", ""),
    ):
        CASES[f"loss in a model, {_name}: {_loss}"] = f"""
        === train.py
        import torch
        import torch.nn.functional as F
        from torch import nn

        def criterion(x, y):
            return {_loss}{_mark}

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)
                self.loss = lambda x, y: criterion(x, y)
                {_call}

            def train(self, mode=True):
                super().train(mode)
                self.forward = self.run
                return self

            {_members}

            def run(self, x, y):
                return {{"loss": self.loss(self.layer(x), y)}}

        def main(loader):
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x, y)["loss"]
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        """

# A region inside a part of the model, and a loss outside of every region.
for _name, _returned, _taken in (
    ("alone", "out", "out"),
    ("in a dict", '{"logits": out}', 'out["logits"]'),
    ("in a tuple", "(out, x)", "out[0]"),
    ("in a dict of dicts", '{8: {"logits": out, "seen": x}}', 'out[8].get("logits")'),
):
    for _region, _cast, _mark in (
        ('torch.autocast("cuda", dtype=torch.float16)', "", "  # AMP104"),
        ('torch.autocast("cuda", dtype=torch.float16)', ".float()", ""),
        ('torch.autocast("cuda", enabled=False)', "", ""),
    ):
        CASES[f"region in a part, output {_name}: {_region}{_cast}"] = f"""
        === train.py
        import torch
        import torch.nn.functional as F
        from torch import nn

        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)

            def forward(self, x):
                with {_region}:
                    return self.layer(x)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = Head()

            def forward(self, x):
                out = self.head(x){_cast}
                return {_returned}

        class Loss(nn.Module):
            def forward(self, out, y):
                return F.cross_entropy({_taken}, y){_mark}

        def main(loader):
            model, criterion = Net(), Loss()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        """

# A program beside this one says nothing about its model; a file with models does.
for _name, _ending, _mark in (("program", "loss.backward()", "  # AMP110"), ("model", "return loss", "")):
    CASES[f"model of an unknown class beside a {_name}"] = f"""
    === train.py
    import torch
    from torch import nn

    def main(model, loader):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y){_mark}
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    === other.py
    import torch
    from torch import nn

    class Other(nn.Module):
        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.float16):
                return x * 2

    def use(x):
        loss = Other()(x).mean()
        {_ending}
    """


# A scaler that is constructed for bfloat16 only.
for _name, _test, _mark in (
    ("equal", 'args.precision == "bf16"', "  # AMP503"),
    ("equal, the other way round", '"bfloat16" == args.precision', "  # AMP503"),
    ("one of two conditions", 'args.cuda and args.precision == "bf16"', "  # AMP503"),
    ("either precision", 'args.precision == "bf16" or args.precision == "fp16"', "  # AMP503"),
    ("either flag", "args.fp16 or args.use_bf16", "  # AMP503"),
    ("another flag", "args.fp16 or args.cuda", ""),
    ("a flag that another condition excludes", "(args.fp16 or args.bf16) and args.fp16", ""),
    ("not equal", 'args.precision != "bf16"', ""),
    ("float16", 'args.precision == "fp16"', ""),
):
    CASES[f"scaler under a condition: {_name}"] = f"""
    === train.py
    import torch

    def main(args, model, loader):
        scaler = None
        if {_test}:
            scaler = torch.amp.GradScaler("cuda"){_mark}
        return scaler
    """

# A scaler for either precision that is enabled for one of them.
for _enabled, _mark in (
    ("True", "  # AMP503"),
    ("args.fp16", ""),
    ("args.fp16 or args.bf16", "  # AMP503"),
    ("args.fp16 and not args.bf16", ""),
    ('args.dtype in ["float16", "bfloat16"]', "  # AMP503"),
    ('args.cuda and args.dtype in ("fp16", "bf16")', "  # AMP503"),
    ("args.dtype in {torch.float16, torch.bfloat16}", "  # AMP503"),
    ('args.dtype in ("fp16", "float16")', ""),
    ('args.dtype not in ("fp32", "bf16")', ""),
):
    CASES[f"scaler for either precision: enabled={_enabled}"] = f"""
    === train.py
    import torch

    def main(args, model, loader):
        if args.fp16 or args.bf16:
            return torch.amp.GradScaler("cuda", enabled={_enabled}){_mark}
    """

# The last micro-batch of a window under no_sync, in the ways in which projects write the condition.
for _name, _lines, _context, _mark in (
    ("in the statement", "pass", "model.no_sync() if i % k != 0 else nullcontext()", "  # AMP305"),
    ("by a stored method", "ctx = model.no_sync if i % k != 0 else nullcontext", "ctx()", "  # AMP305"),
    ("by a stored method, chosen twice", "ctx = model.no_sync if i % k else (model.no_sync)", "ctx()", "  # AMP305"),
    ("with a flag", "ctx = model.no_sync if ddp and i % k != 0 else nullcontext", "ctx()", "  # AMP305"),
    ("at the window's end", "ctx = model.no_sync if (i + 1) % k != 0 else nullcontext", "ctx()", ""),
    ("at the window's end, with a flag", "pass", "model.no_sync() if ddp and (i + 1) % k else nullcontext()", ""),
    ("at the first micro-batch", "ctx = model.no_sync if i % k == 0 else nullcontext", "ctx()", ""),
):
    CASES[f"no_sync {_name}"] = f"""
    === train.py
    from contextlib import nullcontext

    import torch

    def train(model, optimizer, loader, k, ddp):
        for i, (x, y) in enumerate(loader):
            {_lines}
            with {_context}:
                loss = torch.nn.functional.mse_loss(model(x), y) / k
                loss.backward(){_mark}
            if (i + 1) % k == 0:
                optimizer.step()
                optimizer.zero_grad()
    """
CASES["no_sync chosen by a trainer, a step in another method"] = """
=== train.py
from contextlib import nullcontext

import torch

class Trainer:
    def __init__(self, accumulate, ddp):
        self.accumulate = accumulate
        self.ddp = ddp

    def epoch(self, model, optimizer, loader):
        for i, batch in enumerate(loader):
            shared = {"i": i}
            context = nullcontext
            if self.ddp:
                context = model.no_sync if i % self.accumulate != 0 else context
            with context():
                self.backward(model(batch), shared)
            self.update(optimizer, shared)

    def backward(self, loss, shared):
        (loss / self.accumulate).backward()  # AMP305

    def update(self, optimizer, shared):
        if (shared["i"] + 1) % self.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
CASES["no_sync by a count that a caller's loop counts"] = """
=== train.py
from contextlib import nullcontext

import torch

class Trainer:
    def step(self, model, optimizer, batch):
        context = model.no_sync if self.count + 1 != self.accumulate else nullcontext
        with context():
            (model(batch) / self.accumulate).backward()
        if (self.count + 1) % self.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            self.count = 0
        else:
            self.count += 1
"""
CASES["a clip by hand where a NaN was not found"] = """
=== train.py
import torch

class Step:
    def __init__(self, options, optimizers):
        self.scaler = torch.amp.GradScaler("cuda", enabled=options["fp16"])
        self.optimizers = optimizers
        self.limit = options["limit"]

    def do_step(self):
        for optimizer in self.optimizers:
            found = False
            if self.check:
                for group in optimizer.param_groups:
                    for p in group["params"]:
                        if not torch.isfinite(p.grad).any():
                            found = True
                            break
            if self.limit is not None and self.limit != 0:
                for group in optimizer.param_groups:
                    if torch.isnan(clip(group["params"], self.limit)):
                        found = True
            if not found:
                self.scaler.step(optimizer)
                self.scaler.update()
            else:
                optimizer.zero_grad()

def clip(parameters, limit):
    norm = torch.norm(torch.stack([torch.norm(p.grad.detach()) for p in parameters]))
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            p.grad.detach().mul_(factor)
    return norm
"""
CASES["an optimizer of the project clips in its step"] = """
=== train.py
import itertools

import torch

def build(options, model):
    def clipping(optimizer_class):
        class Clipping(optimizer_class):
            def step(self, closure=None):
                parameters = itertools.chain(*[group["params"] for group in self.param_groups])
                torch.nn.utils.clip_grad_norm_(parameters, options.limit)
                super().step(closure=closure)

        return Clipping if options.clip else optimizer_class

    return clipping(torch.optim.SGD)(model.parameters(), lr=0.1)

def main(options, model, loader):
    optimizer = build(options, model)
    if options.fp16:
        scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        loss = model(x)  # AMP110
        optimizer.zero_grad()
        if options.fp16:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
"""
CASES["no_sync chosen by a trainer, right"] = (
    CASES["no_sync chosen by a trainer, a step in another method"]
    .replace("if i % self", "if (i + 1) % self")
    .replace("  # AMP305", "")
)

# The number of a scaled loss.
for _read, _mark in (
    ("total += scaled.item()", "  # AMP202"),
    ("print(scaler.scale(loss).item())", "  # AMP202"),
    ("losses.append(scaled.detach().item())", "  # AMP202"),
    ("total += loss.item()", ""),
    ("total += scaled.item() / scaler.get_scale()", ""),
    ("total += (scaled / scaler.get_scale()).item()", ""),
    ("n = scaled.item(); n /= scaler.get_scale()", ""),
    ("assert math.isfinite(scaled.item())", ""),
    # The number of the loss itself gives the scale, the amount of data does not.
    ("scale = scaled.item() // loss.item()", ""),
    ("before = loss.detach().item(); scale = scaled.item() / before", ""),
    ("inverse = loss.item() / scaled.item()", ""),
    ("total += scaled.item() / len(x)", "  # AMP202"),
    ("total += scaled.item() / x.sum().item()", "  # AMP202"),
    ("total += scaled.item() * loss.item()", "  # AMP202"),
):
    CASES[f"scaled loss: {_read}"] = f"""
    === train.py
    import math

    import torch

    def train(model, optimizer, loader):
        total, losses = 0.0, []
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = torch.nn.functional.mse_loss(model(x), y)
            scaled = scaler.scale(loss)
            scaled.backward()
            {_read}{_mark}
            scaler.step(optimizer)
            scaler.update()
    """
CASES["scaled loss of apex"] = """
=== train.py
import torch
from apex import amp

def train(model, optimizer, loader):
    model, optimizer = amp.initialize(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        print(scaled_loss.item())  # AMP202
        optimizer.step()
"""

CASES["scale of apex, computed from the losses"] = (
    CASES["scaled loss of apex"]
    .replace("print(scaled_loss.item())", "scale = scaled_loss.item() // loss.item()")
    .replace("  # AMP202", "")
)

# A function that another function calls constructs the class, so that the findings of the class itself are left out.
for _call in ("main(args)", "launch(main, args=(args,))"):
    CASES[f"detectron2 saves for a trainer behind two functions, {_call}"] = f"""
    === train.py
    import torch
    from detectron2.engine import SimpleTrainer, launch

    class Trainer(SimpleTrainer):
        def __init__(self, model, loader, optimizer, amp=False, scaler=None):
            super().__init__(model, loader, optimizer)
            if amp:
                if scaler is None:
                    scaler = torch.amp.GradScaler("cuda")  # AMP401
                self.scaler = scaler

        def run_step(self):
            with torch.autocast("cuda"):
                loss = self.model(next(self._data_loader_iter))
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def train(args, cfg):
        trainer = Trainer(build(cfg), load(cfg), optimize(cfg), amp=cfg.amp)
        trainer.train(0, cfg.steps)

    def main(args):
        cfg = read(args)
        if args.eval_only:
            print(test(cfg))
        else:
            train(args, cfg)

    if __name__ == "__main__":
        args = parse()
        {_call}
    """

# A framework writes the checkpoint of a class that keeps its own scaler.
for _base, _right in (
    ("detectron2.engine.SimpleTrainer", "state_dict"),
    ("detectron2.engine.train_loop.SimpleTrainer", "state_dict"),
    ("pytorch_lightning.LightningModule", "on_save_checkpoint"),
    ("lightning.pytorch.LightningModule", "get_extra_state"),
    ("transformers.Trainer", "_save_checkpoint"),
):
    for _method, _enabled, _mark in (
        ("other", "True", "  # AMP401"),
        (_right, "True", ""),
        ("other", "False", ""),
    ):
        CASES[f"{_base} saves, with {_method}, enabled={_enabled}"] = f"""
        === base.py
        import {_base.rpartition(".")[0]}

        class Base({_base}):
            pass

        === train.py
        import torch
        from base import Base

        class Trainer(Base):
            def __init__(self, model, loader, optimizer):
                super().__init__()
                self.grad_scaler = torch.amp.GradScaler("cuda", enabled={_enabled}){_mark}

            def {_method}(self, *args):
                return dict(scale=self.grad_scaler.get_scale())

            def step_of(self, optimizer, loss):
                optimizer.zero_grad()
                self.grad_scaler.scale(loss).backward()
                self.grad_scaler.step(optimizer)
                self.grad_scaler.update()
        """

# The runner of mmcv writes the model, the optimizer and its own ``meta``: a hook adds the scaler to the latter.
for _base in ("runner.OptimizerHook", "runner.Hook", "runner.hooks.OptimizerHook", "runner.hooks.hook.Hook"):
    for _kept, _mark in (
        ("pass", "  # AMP401"),
        ("runner.meta['teacher'] = self.teacher.state_dict()", "  # AMP401"),
        ("runner.meta['fp16'] = dict(scaler=self.scaler.state_dict())", ""),
    ):
        CASES[f"a hook of mmcv, {_base}, {_kept}"] = f"""
        === hooks.py
        import torch
        from mmcv.{_base.rpartition(".")[0]} import {_base.rpartition(".")[2]} as _Base

        class Plain(_Base):
            def before_run(self, runner):
                runner.optimizer.zero_grad()

        class MixedPrecision(Plain):
            def __init__(self, every=1):
                self.every = every
                self.scaler = torch.amp.GradScaler("cuda"){_mark}

            def after_train_iter(self, runner):
                self.scaler.scale(runner.outputs["loss"]).backward()
                self.scaler.step(runner.optimizer)
                self.scaler.update()
                runner.optimizer.zero_grad()
                {_kept}
        """

# The project is the framework, or has a copy of it. A package of another name is another one.
for _folder, _mark in (("mmcv", "  # AMP401"), ("third_party/mmcv", "  # AMP401"), ("ours", "")):
    for _kept, _found in (("pass", _mark), ("runner.meta['scaler'] = self.scaler.state_dict()", "")):
        _prefix = _folder.replace("/", ".")
        CASES[f"a hook in a copy of mmcv, {_folder}, {_kept}"] = f"""
        === {_folder}/runner/hooks/hook.py
        class Hook:
            def after_train_iter(self, runner):
                pass

        === {_folder}/runner/hooks/optimizer.py
        import torch
        from {_prefix}.runner.hooks.hook import Hook

        class OptimizerHook(Hook):
            def after_train_iter(self, runner):
                runner.optimizer.zero_grad()
                runner.outputs["loss"].backward()
                runner.optimizer.step()

        class MixedPrecision(OptimizerHook):
            def __init__(self, scale=None):
                if scale is None:
                    self.scaler = torch.amp.GradScaler("cuda"){_found}
                else:
                    self.scaler = torch.amp.GradScaler("cuda", init_scale=scale)

            def after_train_iter(self, runner):
                runner.optimizer.zero_grad()
                self.scaler.scale(runner.outputs["loss"]).backward()
                self.scaler.step(runner.optimizer)
                self.scaler.update()
                {_kept}
        """

# The option for the length of a window reaches accelerate, or not.
for _arguments, _mark in (
    ("", "  # AMP304"),
    ("mixed_precision='fp16'", "  # AMP304"),
    ("gradient_accumulation_steps=args.gradient_accumulation_steps", ""),
    ("gradient_accumulation_plugin=plugin(args)", ""),
    ("**vars(args)", ""),
    ("gradient_accumulation_steps=1", ""),
):
    for _name, _use, _counts in (
        ("an option", "print(args.gradient_accumulation_steps)", True),
        ("no option", "print(accelerator.gradient_accumulation_steps)", False),
    ):
        CASES[f"Accelerator({_arguments}) beside {_name}"] = f"""
        === train.py
        import torch
        from accelerate import Accelerator

        def main(args, loader):
            accelerator = Accelerator({_arguments}){_mark if _counts else ""}
            model = torch.nn.Linear(8, 1)
            model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
            {_use}
        """

# The caller chooses the dtype of a moving average, which a class in another file casts.
for _dtype, _lines, _mark in (
    ("torch.float16", "pass", "  # AMP508"),
    ("low", "low = torch.bfloat16 if args.bf16 else torch.float16", "  # AMP508"),
    ("low", "low = torch.float32\n    if args.half: low = torch.float16", "  # AMP508"),
    ("torch.float32", "low = torch.float16", ""),
    ("wide", "wide = torch.float32; low = torch.float16", ""),
):
    for _given in ("model, 0.99, {}", "model, dtype={}"):
        for _update, _averages in (
            ("mean.mul_(self.decay).add_(new.to(mean.dtype), alpha=1 - self.decay)", True),
            ("mean.copy_(new)", False),
        ):
            CASES[f"average: {_given.format(_dtype)}, {_lines}, {_update}"] = f"""
            === averages.py
            import copy

            class Average:
                def __init__(self, model, decay=0.999, dtype=None):
                    self.decay = decay
                    self.model = copy.deepcopy(model)
                    self.model.to(dtype=dtype)

                def step(self, model):
                    for mean, new in zip(self.model.parameters(), model.parameters()):
                        {_update}

            === train.py
            import torch
            from averages import Average

            def main(args, model, loader):
                {_lines.replace(chr(10), chr(10) + " " * 12)}
                average = Average({_given.format(_dtype)}){_mark if _averages else ""}
                for x in loader:
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        print(model(x))
                    average.step(model)
            """

# Gradients are divided after the loop, only where there are several micro-batches.
for _name, _division, _mark in (
    ("under guards", "for p in model.parameters():\n{0}if p.requires_grad:\n{0}    p.grad.div_(k)", ""),
    ("with an assertion", "for p in model.parameters():\n{0}assert p.grad is not None\n{0}p.grad /= k", ""),
    ("by another number", "for p in model.parameters():\n{0}p.grad.div_(limit)", "  # AMP301"),
    ("not at all", "total /= k", "  # AMP301"),
):
    CASES[f"division if there are several micro-batches, {_name}"] = f"""
    === train.py
    import torch

    def train(model, optimizer, data, steps, k, limit):
        for _ in range(steps):
            optimizer.zero_grad()
            total = 0.0
            for i in range(k):
                loss = torch.nn.functional.mse_loss(model(next(data)), next(data))
                loss.backward(){_mark}
                total += loss.item()
            if k > 1:
                {_division.format(" " * 20)}
            optimizer.step()
    """

# A float16 region beside accelerate: of the trained model, or of one that only computes features.
for _decorators, _mark in (
    ("@torch.no_grad()\n{0}@torch.autocast('cuda', dtype=torch.float16)", ""),
    ("@torch.autocast('cuda', dtype=torch.float16)\n{0}@torch.inference_mode()", ""),
    ("@torch.autocast('cuda', dtype=torch.float16)", "  # AMP502"),
):
    CASES[f"features: {_decorators}"] = f"""
    === train.py
    import torch
    from accelerate import Accelerator

    class Trainer:
        def __init__(self, options, model, optimizer):
            self.accelerator = Accelerator(mixed_precision=options.precision)
            self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

        {_decorators.format(" " * 8)}{_mark}
        def features(self, x):
            return self.model(x)

        def step(self, x):
            self.optimizer.zero_grad()
            loss = self.features(x).mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
    """

# no_sync of a framework: at the last micro-batch, or at the others.
for _framework, _engine, _context in (
    ("accelerate", "Accelerator()", "{engine}.no_sync(model) if {condition} else nullcontext()"),
    ("lightning", "Fabric()", "{engine}.no_backward_sync(model, enabled={condition})"),
    ("lightning", "Fabric()", "{engine}.no_backward_sync(model, {condition})"),
):
    for _condition, _mark in (
        ("(i + 1) % k != 0", ""),
        ("i % k != 0", "  # AMP305"),
        ("True", "  # AMP305"),
        ("False", ""),
    ):
        CASES[f"no_sync of {_framework}: {_context}, {_condition}"] = f"""
        === train.py
        from contextlib import nullcontext

        import torch
        from {_framework} import {_engine.removesuffix("()")}

        def train(model, optimizer, loader, k):
            engine = {_engine}
            model, optimizer = engine.{"setup" if _framework == "lightning" else "prepare"}(model, optimizer)
            for i, (x, y) in enumerate(loader):
                with {_context.format(engine="engine", condition=_condition)}:
                    loss = torch.nn.functional.mse_loss(model(x), y) / k
                    engine.backward(loss){_mark}
                if (i + 1) % k == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """

# A method clips what another method of the class has scaled, itself or in a function, and steps unless it finds a NaN.
for _name, _clip, _unscale, _mark in (
    ("itself", "norm = torch.nn.utils.clip_grad_norm_(group['params'], self.limit)", "pass", "  # AMP201"),
    ("after unscale_", "norm = torch.nn.utils.clip_grad_norm_(group['params'], self.limit)", "{}.unscale_(opt)", ""),
    ("in a function", "norm = bounded(group['params'], self.limit)", "{}.unscale_(opt)", ""),
):
    CASES[f"a method clips {_name}"] = f"""
    === train.py
    import torch

    class Step(torch.nn.Module):
        def __init__(self, options):
            super().__init__()
            self.scaler = torch.amp.GradScaler("cuda", enabled=options["fp16"])
            self.optimizers = [torch.optim.Adam(self.parameters())]
            self.limit = options["limit"]

        def accumulate(self, x):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.net(x).mean()
            self.scaler.scale(loss).backward()

        def update(self):
            for opt in self.optimizers:
                found = False
                if self.limit is not None:
                    {_unscale.format("self.scaler")}
                    for group in opt.param_groups:
                        {_clip}{_mark}
                        if torch.isnan(norm):
                            found = True
                if not found:
                    self.scaler.step(opt)
                    self.scaler.update()
                else:
                    opt.zero_grad()

    def bounded(parameters, limit):
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        return norm
    """
CASES["a method clips in a function that does not unscale"] = (
    CASES["a method clips in a function"]
    .replace("self.scaler.unscale_(opt)", "pass")
    .replace(
        "norm = torch.nn.utils.clip_grad_norm_(parameters, limit)",
        "norm = torch.nn.utils.clip_grad_norm_(parameters, limit)  # AMP201",
    )
)


@pytest.mark.parametrize("name", CASES)
def test_real_mistake(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    assert found(tmp_path) == marks(tmp_path), CASES[name]
