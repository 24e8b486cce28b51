"""Mistakes spread over classes and files: each with the right project beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

CASES: dict[str, str] = {}

# The class of a parameter, known by its annotation.
for _annotation, _default in (("Engine", ""), ('"Engine"', ""), ("Optional[Engine]", " = None"), ("Abstract", "")):
    for _unscale, _mark in (("pass", "  # AMP201"), ("engine.scaler.unscale_(self.optimizer)", "")):
        CASES[f"annotated with {_annotation}: {_unscale}"] = f"""
        === train.py
        from typing import Optional
        import torch
        from torch import nn

        class Abstract:
            def backward_loss(self, loss):
                raise NotImplementedError

        class Engine(Abstract):
            def __init__(self):
                self.scaler = torch.amp.GradScaler("cuda")

            def backward_loss(self, loss):
                self.scaler.scale(loss).backward()

            def optimizer_step(self, optimizer):
                self.scaler.step(optimizer)
                self.scaler.update()

        class Callback:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer

            def on_batch_end(self, loss, engine: {_annotation}{_default}):
                self.optimizer.zero_grad()
                engine.backward_loss(loss)
                {_unscale}
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0){_mark}
                engine.optimizer_step(self.optimizer)
        """

# A context manager that yields autocast.
for _name, _body, _use in (
    ("passed on", 'yield torch.autocast("cuda", dtype=torch.float16)  # AMP105', "with self.context():"),
    ("entered", 'with torch.autocast("cuda", dtype=torch.float16):\n            yield', "with self.context():"),
    (
        "entered and passed on",
        'with torch.autocast("cuda") as region:\n            yield region',
        "with self.context():",
    ),
    ("bound", 'yield torch.autocast("cuda", dtype=torch.float16)', "with self.context() as region, region:"),
):
    CASES[f"autocast that a context manager has {_name}"] = (
        "=== precision.py\n"
        "from contextlib import contextmanager\n"
        "import torch\n"
        "class Precision:\n"
        "    @contextmanager\n"
        "    def context(self):\n"
        f"        {_body}\n"
        "    def step(self, model, x):\n"
        f"        {_use}\n"
        "            return model(x)\n"
    )

# A flag of a file that is not analyzed.
for _name, _condition in (
    ("an attribute", "not config.DEBUG"),
    ("a name", "not DEBUG"),
    ("a comparison with None", "config.DEBUG is None"),
):
    CASES[f"a flag of another file: {_name}"] = f"""
        === config.py
        DEBUG = False
        === train.py
        import torch
        import config
        from config import DEBUG

        def train(model, loader, optimizer, loss_fn):
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                if {_condition}:
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = loss_fn(model(x), y)
                    scaler.scale(loss).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
                    scaler.step(optimizer)
                    scaler.update()
        """

# A base class that writes the checkpoint of a subclass with a scaler.
_SUBCLASS = """
        === trainer.py
        import torch
        from base import Base

        class Trainer(Base):
            def __init__(self, net, optimizer):
                super().__init__(net, optimizer)
                self.scaler = torch.amp.GradScaler("cuda")

            def train_epoch(self, loader):
                for x in loader:
                    self.optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = self.net(x).mean()
                    self.scaler.scale(loss).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
        {more}
        === base.py
        import torch

        class Base:
            def __init__(self, net, optimizer):
                self.net, self.optimizer = net, optimizer

            def more_state(self):
                return {{}}

            def save(self, path):
                state = {{
                    "net": self.net.state_dict(),
                    "optimizer": self.optimizer.state_dict(),{mark}
                    **self.more_state(),
                }}
                torch.save(state, path)

            def load(self, path):
                state = torch.load(path)
                self.optimizer.load_state_dict(state["optimizer"])
        """
CASES["a checkpoint of a base class"] = _SUBCLASS.format(more="", mark="  # AMP401")
CASES["a checkpoint of a base class, with the state that the subclass adds"] = _SUBCLASS.format(
    more="""
            def more_state(self):
                return {"scaler": self.scaler.state_dict()}
""",
    mark="",
)
CASES["a checkpoint of a base class, which the subclass writes itself"] = _SUBCLASS.format(
    more="""
            def save(self, path):
                torch.save({"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}, path)
""",
    mark="",
)


# A file that changes the keys of the checkpoint, and writes it.
for _name, _renamed in (
    (
        "a comprehension",
        """
        def renamed(d, old, new):
            return {k.replace(old, new): renamed(v, old, new) if isinstance(v, dict) else v for k, v in d.items()}
""",
    ),
    (
        "a loop",
        """
        def renamed(d, old, new):
            made = OrderedDict() if isinstance(d, OrderedDict) else {}
            for key, value in d.items():
                new_key = key.replace(old, new) if isinstance(key, str) else key
                made[new_key] = renamed(value, old, new) if isinstance(value, dict) else value
            return made
""",
    ),
):
    for _more, _mark in (("", "  # AMP401"), ('"scaler": scaler.state_dict(), ', "")):
        CASES[f"a checkpoint renamed by {_name}{_more}"] = f"""
        === train.py
        import torch
        from saving import load, save

        def train(net, loader):
            optimizer = torch.optim.AdamW(net.parameters())
            load("last.pth", net, optimizer)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = (net(x) - y).abs().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            save(net, optimizer, scaler, "last.pth")
        === saving.py
        from collections import OrderedDict
        import torch
{_renamed}
        def save(model, optimizer, scaler, path):
            data = {{{_more}"model": model.state_dict(), "optimizer": optimizer.state_dict()}}{_mark}
            torch.save(renamed(data, "old", "new"), path)

        def load(path, model, optimizer):
            data = torch.load(path)
            model.load_state_dict(data["model"])
        """

# A file that passes its optimizer to a file that trains and a file that saves.
for _more, _load, _mark in (
    ("", "pass", "  # AMP401"),
    ('"scaler": self.processor.scaler.state_dict(), ', 'processor.scaler.load_state_dict(state["scaler"])', ""),
):
    CASES[f"connected by a main file{_more}"] = f"""
        === main.py
        import torch
        from pipeline import Pipeline
        from processor import Processor

        def main(model, loader, path):
            optimizer = torch.optim.AdamW(model.parameters())
            Pipeline(model, optimizer, loader, Processor(), path).train()
        === processor.py
        import torch

        class Processor:
            def __init__(self):
                self.scaler = torch.amp.GradScaler("cuda")

            def train_step(self, model, batch, optimizer):
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(batch).mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(optimizer)
                self.scaler.update()
        === pipeline.py
        import torch

        class Pipeline:
            def __init__(self, model, optimizer, loader, processor, path):
                self.model, self.optimizer, self.loader, self.processor = model, optimizer, loader, processor
                if path:
                    state = torch.load(path)
                    self.optimizer.load_state_dict(state["optimizer"])
                    {_load}

            def train(self):
                for batch in self.loader:
                    self.processor.train_step(self.model, batch, self.optimizer)
                torch.save({{{_more}"optimizer": self.optimizer.state_dict(), "epoch": 1}}, "last.pt"){_mark}
        """

# A name that nothing binds holds no state.
for _import, _mark in (("", "  # AMP401"), ("from apex import amp", "")):
    CASES[f"a state of an unbound name {_import}"] = f"""
        === train.py
        import torch
        {_import}

        def save(model, optimizer, fp16):
            state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}{_mark}
            if fp16:
                state["amp"] = amp.state_dict()
            torch.save(state, "x")

        def train(model, loader):
            optimizer = torch.optim.AdamW(model.parameters())
            scaler = torch.amp.GradScaler("cuda")
            optimizer.load_state_dict(torch.load("x")["optimizer"])
            for x in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            save(model, optimizer, True)
        """

# Gradients for a double backward: a penalty on their norm in float16. Forces, which a model predicts as gradients, are
# part of its forward pass.
_PENALTY = "(grads.norm(2, dim=1) - 1).square()"
for _graph, _place, _dtype, _term, _mark in (
    ("create_graph=True", "in", "", _PENALTY, "  # AMP103"),
    ("create_graph=True", "in", ", dtype=torch.float16", "(grads.square().sum(1).sqrt() - 1).square()", "  # AMP103"),
    ("create_graph=True", "in", ", dtype=torch.bfloat16", _PENALTY, ""),
    ("create_graph=True", "in", "", "(grads + real).square()", ""),
    ("create_graph=True", "in", "", "grads.pow(2).sum(1)", "  # AMP103"),
    ("create_graph=True", "in", "", "(grads.view(len(grads), -1) ** 2)", "  # AMP103"),
    ("create_graph=True", "in", "", "grads.flatten(1).square().sum(1)", "  # AMP103"),
    ("create_graph=True", "in", "", "(grads - real).pow(2).sum(1)", ""),
    ("create_graph=True", "in", "", "real.pow(2) * grads", ""),
    ("retain_graph=True", "in", "", "grads.pow(2).sum(1)", ""),
    ("create_graph=True", "out", "", "grads.pow(2).sum(1)", ""),
    ("retain_graph=True", "in", "", _PENALTY, ""),
    ("create_graph=True", "out", "", _PENALTY, ""),
):
    _call = f"grads = torch.autograd.grad(scores, real, {_graph})[0]{_mark}"
    CASES[f"autograd.grad with {_graph} {_place} a region{_dtype}, {_term}"] = f"""
        === train.py
        import torch

        def train(dis, optimizer, loader):
            scaler = torch.amp.GradScaler("cuda")
            for real in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"{_dtype}):
                    scores = dis(real).sum()
                    {_call if _place == "in" else "pass"}
                {_call if _place == "out" else "pass"}
                with torch.autocast("cuda"{_dtype}):
                    loss = scores + 10.0 * {_term}.mean()
                scaler.scale(loss).backward(){"  # AMP503" if "bfloat16" in _dtype else ""}
                scaler.step(optimizer)
                scaler.update()
        """

# A scaler that has scaled the loss is not None, whatever tests its existence later.
for _test, _mark in (
    ("scaler is not None", ""),
    ("scaler", ""),
    ("self.executor.scaler is not None", ""),
    ("fast", "  # AMP204"),
):
    _owner = "self.executor.scaler" if "executor" in _test else "scaler"
    CASES[f"a scaler that scales exists: {_test}"] = f"""
        === train.py
        import torch

        class Executor:
            def __init__(self, model, scaler=None):
                self.model = model
                self.scaler = scaler

            def run(self, x):
                with torch.autocast("cuda"):
                    loss = self.model(x).mean()
                self.scaler.scale(loss).backward()

        class Trainer:
            def __init__(self, executor: Executor, optimizer: torch.optim.Optimizer):
                self.executor = executor
                self.optimizer = optimizer

            def step(self, x, fast, scaler):
                self.optimizer.zero_grad()
                if {"executor" in _test}:
                    self.executor.run(x)
                else:
                    with torch.autocast("cuda"):
                        loss = self.executor.model(x).mean()
                    scaler.scale(loss).backward()
                if {_test}:
                    {_owner}.step(self.optimizer)
                    {_owner}.update()
                else:
                    self.optimizer.step(){_mark}
        """

# A helper copies a state entry by entry.
for _copy in ("copied = {k: on_cpu(v) for k, v in state.items()}", "for k, v in state.items(): copied[k] = on_cpu(v)"):
    for _saved, _mark in (("", "  # AMP401"), (', "scaler": on_cpu(self.scaler.state_dict())', "")):
        CASES[f"a copied state: {_copy} {bool(_saved)}"] = f"""
        === train.py
        import torch

        def on_cpu(state):
            if isinstance(state, dict):
                copied = {{}}
                {_copy}
                return copied
            return state

        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters())
                self.scaler = torch.amp.GradScaler("cuda")

            def step(self, x, y):
                self.optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()

            def save(self):
                saved = {{"optimizer": on_cpu(self.optimizer.state_dict()){_saved}}}{_mark}
                torch.save(saved, "last.pt")
        """

# Weights that change between two forwards of one region, in which a helper enters another region.
for _indent, _mark in (("    ", "  # AMP101"), ("", "")):
    CASES[f"weights changed in nested regions {bool(_indent)}"] = f"""
        === train.py
        import torch
        from torch import nn

        def attack(model, x, y):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                for p in model.parameters():
                    p.data.add_(0.1){_mark}
                return nn.functional.cross_entropy(model(x), y)

        def train(model, optimizer, loader):
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x), y)
                {_indent}other = attack(model, x, y)
                (loss + other).backward()
                optimizer.step()

        def main(loader):
            model = nn.Linear(8, 8)
            train(model, torch.optim.SGD(model.parameters(), 0.1), loader)
        """

# DeepSpeed divides by its own number of micro-batches.
for _target, _wrapper in (("self.engine", ""), ("engine", "self.engine = Wrapper(engine)")):
    for _number, _mark in (("self.gradient_accumulation_steps", "  # AMP302"), ("self.temperature", "")):
        CASES[f"{_target} of DeepSpeed, and a division by {_number}"] = f"""
        === helper.py
        import deepspeed

        class Wrapper:
            def __init__(self, engine):
                self.engine = engine

            def backward(self, loss):
                self.engine.backward(loss)

        class Helper:
            def __init__(self, gradient_accumulation_steps, temperature, kind):
                self.gradient_accumulation_steps, self.temperature = gradient_accumulation_steps, temperature
                self.engine, self.kind = None, kind

            def prepare(self, model, config):
                {_target}, *_ = deepspeed.initialize(model=model, config=config)
                {_wrapper or "pass"}

            def backward(self, loss):
                loss /= {_number}{_mark}
                if self.kind == "deepspeed":
                    self.engine.backward(loss)
                else:
                    loss.backward()
        """


# The class of a parameter, known by the methods that are called on it.
for _clear, _mark in (("self.optimizer.zero_grad()", "  # AMP304"), ("pass", "")):
    CASES[f"an actor that a driver steps after several backwards: {_clear}"] = f"""
        === train.py
        import torch

        class Actor:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.AdamW(model.parameters())
                self.scaler = torch.amp.GradScaler("cuda")

            def forward_backward(self, batch, k):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = self.model(batch).mean() / k
                {_clear}{_mark}
                self.scaler.scale(loss).backward()

            def optim_step(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

        class Logger:
            def forward_backward(self, batch, k):
                print(batch)

        def drive(actor, loader, k):
            for i, batch in enumerate(loader):
                actor.forward_backward(batch, k)
                if (i + 1) % k == 0:
                    actor.optim_step()
        """

# A gradient hook that clamps by a helper, in another file than the trainer.
for _hook, _mark in (
    ("lambda grad: clamp_tensor(grad, -limit, limit)", "  # AMP202"),
    ("lambda grad: grad.clamp(-limit, limit)", "  # AMP202"),
    ("lambda grad: rescaled(grad, limit)", ""),
):
    CASES[f"a hook of a helper file: {_hook}"] = f"""
        === hooks.py
        def clamp_tensor(t, low, high):
            return t.coalesce().clamp(low, high) if t.is_sparse else t.clamp(low, high)

        def rescaled(t, factor):
            return t * factor

        def use_hooks(model, limit):
            for p in model.parameters():
                if p.requires_grad:
                    p.register_hook({_hook})
        === train.py
        import torch
        from hooks import use_hooks

        def train(model, loader, limit):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            scaler = torch.amp.GradScaler("cuda")
            use_hooks(model, limit){_mark}
            for x in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """

# A scaler that a method constructs for its only step.
for _name, _made, _driver, _mark in (
    (
        "in the step",
        'scaler = torch.amp.GradScaler("cuda")',
        "for batch in loader: model.optimize(batch)",
        "  # AMP208",
    ),
    ("in the step, called once", 'scaler = torch.amp.GradScaler("cuda")', "model.optimize(loader)", ""),
    ("outside of it", "scaler = self.scaler", "for batch in loader: model.optimize(batch)", ""),
):
    CASES[f"a scaler made {_name}"] = f"""
        === models.py
        import torch

        REGISTRY = {{}}

        def register(cls):
            REGISTRY[cls.__name__] = cls
            return cls

        @register
        class Plain:
            def __init__(self, net):
                self.net, self.optimizer = net, torch.optim.Adam(net.parameters())
                self.scaler = torch.amp.GradScaler("cuda")

            def optimize(self, batch):
                self.optimizer.zero_grad()
                {_made}{_mark}
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = self.net(batch).abs().mean()
                scaler.scale(loss).backward()
                scaler.step(self.optimizer)
                scaler.update()
        === main.py
        from models import REGISTRY

        def main(name, net, loader):
            model = REGISTRY[name](net)
            {_driver}
        """

# The window is counted in a base class, and a subclass of another file makes the calls.
for _count, _ends in (
    ("self.seen = (self.seen + 1) % self.k", "self.seen == 0"),
    ("self.seen += 1", "self.seen % self.k == 0"),
):
    for _base, _import in (
        ("engine", "from engine import Engine"),
        ("lib/parts/engine", "from lib.parts.engine import Engine"),
    ):
        for _divide, _mark in (("loss", "  # AMP301"), ("loss / self.k", "")):
            for _clears, _clear_mark in (
                ("self.finish()", ""),
                ("self.finish()\n                self.forget()", "  # AMP304"),
            ):
                if _mark and _clear_mark:
                    continue
                CASES[f"{_count} in {_base}: {_divide}, {_clears}"] = f"""
        === {_base}.py
        import torch

        class Engine:
            def __init__(self, model, optimizer, k):
                self.model, self.optimizer, self.k = model, optimizer, k
                self.seen = 0

            def run_backward(self, loss):
                ({_divide}).backward(){_mark}

            def finish(self):
                {_count}
                if {_ends}:
                    self.optimizer.step()
                    self.optimizer.zero_grad()

            def forget(self):
                self.optimizer.zero_grad(){_clear_mark}
        === ranking.py
        import torch
        {_import}

        class Ranking(Engine):
            def train_on(self, x, y):
                loss = torch.nn.functional.mse_loss(self.model(x), y)
                self.run_backward(loss)
                {_clears}
        """

# A loss of one's own in a subclass of transformers' Trainer.
for _name, _body, _init, _mark in (
    ("ignores the window", "loss = model(inputs).mean()", "pass", "  # AMP301"),
    ("lets the Trainer divide", "loss = model(inputs).mean()", "self.model_accepts_loss_kwargs = False", ""),
    ("divides by the items", "loss = model(inputs).sum() / num_items_in_batch", "pass", ""),
    ("passes the items", "loss = model(inputs, num_items=num_items_in_batch)", "pass", ""),
    (
        "calls the base class",
        "loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)",
        "pass",
        "",
    ),
    ("divides by the window", "loss = model(inputs).mean() / self.args.gradient_accumulation_steps", "pass", ""),
    (
        "divides by a name of the window",
        "k = max(1, self.args.gradient_accumulation_steps); loss = model(inputs).mean() * (1.0 / k)",
        "pass",
        "",
    ),
    (
        "divides by an attribute",
        "loss = model(inputs).mean() / self.k",
        "self.k = self.args.gradient_accumulation_steps",
        "",
    ),
    (
        "only averages a metric",
        "loss = model(inputs).mean(); self.log(self.accuracy(inputs) / self.args.gradient_accumulation_steps)",
        "pass",
        "  # AMP301",
    ),
    (
        "only counts with the window",
        "loss = model(inputs).mean()\n                self.done += 1.0 / self.args.gradient_accumulation_steps",
        "self.buffered = self.args.gradient_accumulation_steps",
        "  # AMP301",
    ),
):
    CASES[f"a subclass of Trainer that {_name}"] = f"""
        === train.py
        import torch
        from transformers import Trainer

        class PairTrainer(Trainer):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                {_init}

            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):{_mark}
                {_body}
                return (loss, {{}}) if return_outputs else loss
        """

# The Trainer passes the window by name, so keywords receive it.
for _name, _call, _mark in (
    ("drops its keywords", "model(**inputs).mean()", "  # AMP301"),
    ("passes its keywords on", "model(**inputs, **kwargs).mean()", ""),
    ("asks its keywords", 'model(**inputs).sum() / kwargs["num_items_in_batch"]', ""),
):
    CASES[f"a loss that {_name}"] = f"""
        === train.py
        from transformers import Seq2SeqTrainer

        class Translator(Seq2SeqTrainer):
            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):{_mark}
                loss = {_call}
                return (loss, {{}}) if return_outputs else loss
        """

# The Trainer stands two files away, and a base class overrides its step.
for _name, _step, _mark in (
    (
        "runs the step of the Trainer",
        "with self.watch():\n                    return super().training_step(*args)",
        "  # AMP301",
    ),
    ("has a step of its own", "return self.run(*args)", ""),
):
    CASES[f"a base class of another file that {_name}"] = f"""
        === base.py
        from transformers import Trainer

        class Base(Trainer):
            pass
        === tuning.py
        from base import Base

        class Tuning(Base):
            def training_step(self, *args):
                {_step}

            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        === distill.py
        from tuning import Tuning

        class Distill(Tuning):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):{_mark}
                return (model(inputs) - self.teacher(inputs)).square().mean()
        """


@pytest.mark.parametrize("name", CASES)
def test_architecture(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    assert found(tmp_path) == marks(tmp_path), CASES[name]
