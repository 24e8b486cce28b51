"""Facts from other locations of a file: options set by executed code, and the meaning of a name from its uses."""

from __future__ import annotations

from textwrap import dedent

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

PROGRAMS = {
    "options that are set by code which is executed": """
        import torch
        from model import Transformer, batches

        dtype = "bfloat16"
        grad_clip = 1.0
        exec(open("configurator.py").read())
        ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
        model = Transformer()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
        for x, y in batches():
            with torch.amp.autocast("cuda", dtype=ptdtype):
                loss = model(x, y)
            scaler.scale(loss).backward()
            if grad_clip != 0.0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)  # AMP201
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "options of a namespace that is executed in are none of the file": """
        import torch
        from model import Transformer, batches

        dtype = "bfloat16"
        found = {}
        exec(open("configurator.py").read(), found)
        model = Transformer()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
        for x, y in batches():
            with torch.amp.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x, y)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "an optimizer that is only asked for its zero_grad where it is made": """
        import inspect
        import torch
        from optimizers import get_optimizer

        class Trainer:
            def __init__(self, cfg, model):
                self.model = model
                self.optim = self.setup(cfg, model)
                self.scaler = torch.amp.GradScaler("cuda")

            def setup(self, cfg, model):
                optim = get_optimizer(cfg.optim, model)
                if "set_to_none" in inspect.signature(optim.zero_grad).parameters:
                    self.clearing = {"set_to_none": True}
                return optim

            def train_step(self, x, y):
                with torch.autocast("cuda"):
                    loss = self.model(x, y)
                self.scaler.scale(loss).backward()
                self.optim.step()  # AMP204
                self.scaler.update()
                self.optim.zero_grad(**self.clearing)
        """,
    "one of several heads, each of which has an optimizer of its own": """
        import torch
        from losses import Margin

        def train(model, loader, groups, device):
            criterion = torch.nn.CrossEntropyLoss()
            optimizer = torch.optim.Adam(model.parameters())
            heads = [Margin(4, len(group)) for group in groups]
            optimizers = [torch.optim.Adam(head.parameters()) for head in heads]
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(10):
                n = epoch % len(groups)
                heads[n] = heads[n].to(device)
                for x, y in loader:
                    optimizer.zero_grad()
                    optimizers[n].zero_grad()
                    with torch.autocast("cuda"):
                        loss = criterion(heads[n](model(x), y), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    optimizers[n].step()  # AMP204
                    scaler.update()
        """,
    "the same, and the scaler steps both": """
        import torch
        from losses import Margin

        def train(model, loader, groups, device):
            criterion = torch.nn.CrossEntropyLoss()
            optimizer = torch.optim.Adam(model.parameters())
            heads = [Margin(4, len(group)) for group in groups]
            optimizers = [torch.optim.Adam(head.parameters()) for head in heads]
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(10):
                n = epoch % len(groups)
                heads[n] = heads[n].to(device)
                for x, y in loader:
                    optimizer.zero_grad()
                    optimizers[n].zero_grad()
                    with torch.autocast("cuda"):
                        loss = criterion(heads[n](model(x), y), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.step(optimizers[n])
                    scaler.update()
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_exactly_its_marks(name: str) -> None:
    source = dedent(PROGRAMS[name])
    found = check_source(source, "train.py")
    assert places(found) == marks(source), f"{shown(found)}\n{source}"
