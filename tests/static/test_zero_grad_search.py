"""Gradients that no code clears between a step and the next backward, and other code without a clearing effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

from pytest_amp_check import check_source

TREES = {
    "without a scaler, by a function that gets its optimizer": """
        === train.py
        import torch

        def wrong(model, loader, optimizer):
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()  # AMP215
                optimizer.step()

        def right(model, loader, optimizer):
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                for parameter in model.parameters():
                    parameter.grad = None
        """,
    "without a scaler, once before the loop of another method": """
        === train.py
        import torch
        from factory import build

        class Recipe:
            def __init__(self, model, config):
                self.model = model
                self.optimizers = build(config, model)

            def forward_backward(self, batch):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = self.model(**batch).loss
                loss.backward()  # AMP215
                return loss

            def train_step(self, batch):
                loss = self.forward_backward(batch)
                self.optimizers.step()
                return loss

            def train(self, loader):
                self.optimizers.zero_grad()
                for batch in loader:
                    print(self.train_step(batch))
        """,
    "without a scaler, in each of the loops": """
        === train.py
        import torch

        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.AdamW(model.parameters())

            def step(self, batch):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = self.model(**batch).loss
                loss.backward()
                self.optimizer.step()

            def train(self, loader):
                for batch in loader:
                    self.model.zero_grad()
                    self.step(batch)
        """,
    "a scheduler is stepped, and the optimizer in another file": """
        === train.py
        import torch

        def train(model, loader, scheduler, finish):
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                finish(model)
                scheduler.step()
        """,
    "without a scaler, by one of two optimizers of the same model": """
        === train.py
        import torch

        def train(model, loader, warm):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            first = torch.optim.Adam(model.parameters())
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                if warm:
                    first.step()
                else:
                    optimizer.step()
                optimizer.zero_grad()
        """,
    "without a scaler, by a test": """
        === test_state.py
        import torch

        def test_state(model, batch):
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(3):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(**batch).loss
                loss.backward()
                optimizer.step()
        """,
    "clipped before there are gradients, and after": """
        === train.py
        import torch

        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in [(torch.randn(4, 8), torch.randn(4, 2)) for _ in range(4)]:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(model(x), y)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()
        """,
    "cleared once in each epoch": """
        === train.py
        import torch

        class Trainer:
            def __init__(self, model, loader):
                self.model, self.loader = model, loader
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def fit(self):
                for epoch in range(10):
                    self.optimizer.zero_grad()
                    for x, y in self.loader:
                        with torch.autocast("cuda"):
                            loss = self.model(x, y)
                        self.scaler.scale(loss).backward()  # AMP215
                        self.finish()

            def finish(self):
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "cleared in each iteration of a loop around the micro-batches": """
        === train.py
        import torch

        def fit(model, loader, loss_of):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for batch in loader:
                optimizer.zero_grad()
                for part in batch.chunk(4):
                    with torch.autocast("cuda"):
                        loss = loss_of(model(part)) / 4
                    scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    "cleared in the first iteration of an epoch, and where a window ends": """
        === train.py
        import torch

        def fit(model, loader, loss_of, k):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for i, batch in enumerate(loader):
                if i % k == 0:
                    optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = loss_of(model(batch)) / k
                scaler.scale(loss).backward()
                if (i + 1) % k == 0:
                    scaler.step(optimizer)
                    scaler.update()
        """,
    "cleared only where there is no scaler": """
        === train.py
        import torch

        def fit(model, loader, loss_of, half):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda") if half else None
            for batch in loader:
                with torch.autocast("cuda", enabled=half):
                    loss = loss_of(model(batch))
                if scaler is not None:
                    scaler.scale(loss).backward()  # AMP215
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    "two trainings, one after the other": """
        === train.py
        import torch

        def fit(model, loader, optimizer, scaler):
            for batch in loader:
                with torch.autocast("cuda"):
                    loss = model(batch)
                scaler.scale(loss).backward()  # AMP215
                scaler.step(optimizer)
                scaler.update()

        def main(config):
            for stage in ("first", "second"):
                model, loader, optimizer, scaler = prepare(config, stage)
                fit(model, loader, optimizer, scaler)
            model, loader, optimizer, scaler = prepare(config, "third")
            fit(model, loader, optimizer, scaler)

        def prepare(config, stage):
            from setup import setup
            return setup(config, stage)
        === setup.py
        import torch
        from anything import build

        def setup(config, stage):
            model, loader = build(config, stage)
            return model, loader, torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
        """,
    "two scalers, each of which serves an optimizer of its own": """
        === train.py
        import torch

        def fit(nets, loader, optimizer_g, optimizer_d):
            scaler_g, scaler_d = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
            for batch in loader:
                optimizer_d.zero_grad()
                with torch.autocast("cuda"):
                    loss_d = nets.discriminate(batch)
                scaler_d.scale(loss_d).backward()
                scaler_d.step(optimizer_d)
                scaler_d.update()
                optimizer_g.zero_grad()
                with torch.autocast("cuda"):
                    loss_g = nets.generate(batch)
                scaler_g.scale(loss_g).backward()
                scaler_g.step(optimizer_g)
                scaler_g.update()
        """,
    "an optimizer of the project's own that only steps": """
        === train.py
        import torch

        class Slow(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

            @torch.no_grad()
            def step(self):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            p.add_(p.grad, alpha=-group["lr"])

        def fit(model, loader):
            optimizer = Slow(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for batch in loader:
                with torch.autocast("cuda"):
                    loss = model(batch)
                scaler.scale(loss).backward()  # AMP215
                scaler.step(optimizer)
                scaler.update()
        """,
    "an optimizer of the project's own that clears as it steps": """
        === train.py
        import torch

        class Slow(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

            @torch.no_grad()
            def step(self):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            p.add_(p.grad, alpha=-group["lr"])
                            p.grad = None

        def fit(model, loader):
            optimizer = Slow(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for batch in loader:
                with torch.autocast("cuda"):
                    loss = model(batch)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    "an optimizer of the project's own that sets the gradients to zero": """
        === train.py
        import torch

        class Slow(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

            @torch.no_grad()
            def step(self):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            p.add_(p.grad, alpha=-group["lr"])
                            p.grad.zero_()

        def fit(model, loader):
            optimizer = Slow(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for batch in loader:
                with torch.autocast("cuda"):
                    loss = model(batch)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    "a method that calls the one that it overrides": """
        === engine.py
        import torch

        class Simple:
            def __init__(self, model, data, optimizer):
                self.model, self.data, self.optimizer = model, data, optimizer

            def run_step(self):
                self.optimizer.zero_grad()

        class Mixed(Simple):
            def __init__(self, model, data, optimizer):
                super().__init__(model, data, optimizer)
                self.scaler = torch.amp.GradScaler("cuda")

            def run_step(self):
                super().run_step()
                with torch.autocast("cuda"):
                    loss = self.model(next(self.data))
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "a method that overrides the one that clears": """
        === engine.py
        import torch

        class Simple:
            def __init__(self, model, data, optimizer):
                self.model, self.data, self.optimizer = model, data, optimizer

            def run_step(self):
                loss = self.model(next(self.data))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

        class Mixed(Simple):
            def __init__(self, model, data, optimizer):
                super().__init__(model, data, optimizer)
                self.scaler = torch.amp.GradScaler("cuda")

            def run_step(self):
                with torch.autocast("cuda"):
                    loss = self.model(next(self.data))
                self.scaler.scale(loss).backward()  # AMP215
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "a method of a base class that clears before each step": """
        === engine.py
        import torch

        class Simple:
            def __init__(self, model, data, optimizer):
                self.model, self.data, self.optimizer = model, data, optimizer

            def before_step(self):
                self.optimizer.zero_grad()

        class Mixed(Simple):
            def __init__(self, model, data, optimizer):
                super().__init__(model, data, optimizer)
                self.scaler = torch.amp.GradScaler("cuda")

            def run_step(self):
                with torch.autocast("cuda"):
                    loss = self.model(next(self.data))
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "a hook that clears what its trainer has": """
        === engine.py
        import torch

        class Clearing:
            def __init__(self, trainer):
                self.trainer = trainer

            def before_step(self):
                self.trainer.optimizer.zero_grad()

        class Mixed:
            def __init__(self, model, data, optimizer):
                self.model, self.data, self.optimizer = model, data, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def run_step(self):
                with torch.autocast("cuda"):
                    loss = self.model(next(self.data))
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_has_exactly_its_marks(name: str, tmp_path: Path) -> None:
    write(tmp_path, TREES[name])
    assert found(tmp_path) == marks(tmp_path)


ANEW = """\
import torch

def main(config, model, loader, optimizer):
    for step, batch in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(batch).mean() / config.n
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(loss).backward()
        if (step + 1) % config.n == 0:
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad(set_to_none=True)
"""


def test_a_new_scaler_knows_nothing_of_what_another_has_unscaled() -> None:
    assert {finding.code for finding in check_source(ANEW)} == {"AMP208"}
    made = '        scaler = torch.amp.GradScaler("cuda")\n'
    once = ANEW.replace(made, "").replace("    for step", made[4:] + "    for step")
    assert {finding.code for finding in check_source(once)} == {"AMP209"}


#: A critic whose gradients the policy's loss fills, and whose optimizer clears them before its own backward.
ACTOR_CRITIC = """\
import torch

class Agent:
    def __init__(self):
        self.policy = torch.nn.Linear(2, 2)
        self.critic = torch.nn.Linear(2, 2)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters())
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def update(self, batches):
        for batch in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                critic_loss = self.critic(batch).mean()
            self.critic_optimizer.zero_grad()
            self.scaler.scale(critic_loss).backward()
            self.scaler.step(self.critic_optimizer)
            with torch.autocast("cuda", dtype=torch.float16):
                policy_loss = -self.critic(self.policy(batch)).mean()
            self.policy_optimizer.zero_grad()
            self.scaler.scale(policy_loss).backward()
            self.scaler.step(self.policy_optimizer)
            self.scaler.update()

def train(memory, warm, full):
    agent = Agent()
    for batches in memory:
        if warm and full:
            log(batches)
        elif warm or full:
            agent.update(batches)
        else:
            agent.update(batches)
"""


def test_a_function_that_two_branches_of_a_disjunction_call_clears_before_its_backward() -> None:
    assert check_source(ACTOR_CRITIC) == []
    uncleared = ACTOR_CRITIC.replace("            self.policy_optimizer.zero_grad()\n", "")
    assert {finding.code for finding in check_source(uncleared)} == {"AMP215"}


ESTIMATES = """\
import torch

def estimate(model, loader):
    sums = {}
    for batch in loader:
        model(batch).sum().backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                sums[name] = sums.get(name, 0) + parameter.grad.cpu()
                parameter.grad = None
    return sums

def main(model, loader, job):
    job.start(estimate(model, loader))
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).sum()
        scaler.scale(loss).backward()
        scaler.step(job.optimizer)
        scaler.update()
        job.optimizer.zero_grad()
"""


def test_gradients_that_are_cleared_before_the_optimizer_is_known() -> None:
    assert check_source(ESTIMATES) == []
    uncleared = ESTIMATES.replace("                parameter.grad = None\n", "")
    assert {finding.code for finding in check_source(uncleared)} == {"AMP203"}
