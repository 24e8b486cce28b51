"""Assertions that replay steps, on small trainers with known correct results."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp_check.runtime.emulate.cuda import emulate_cuda
from pytest_amp_check.runtime.replay.accumulation import assert_accumulation_equivalent
from pytest_amp_check.runtime.replay.comparison import UnavailableError
from pytest_amp_check.runtime.replay.precision import assert_matches_fp32
from pytest_amp_check.runtime.replay.replay import Replay
from pytest_amp_check.runtime.replay.resuming import assert_resumes
from pytest_amp_check.runtime.replay.speed import assert_speedup

pytestmark = pytest.mark.usefixtures("patched_once")

Batch = tuple[Tensor, Tensor]
#: Patched parts of torch while steps are watched. Any, because torch's types hide them or have none.
ENGINE: Any = torch.autograd
REGION: Any = torch.amp.autocast_mode.autocast
SCALER: Any = torch.amp.GradScaler
autocast: Any = torch.autocast
backward: Any = torch.autograd.backward
ALL = ("model", "optimizer", "scaler", "scheduler")


class Trainer:
    """A classifier trained as users train, with an option for every mistake."""

    def __init__(
        self,
        *,
        k: int = 1,
        dtype: torch.dtype = torch.float16,
        optimizer: str = "sgd",
        divide: str = "loss",
        dropout: float = 0.0,
        clip: str = "",
        first: int = 1,
        zero_every: bool = False,
        init_scale: float = 2.0**10,
        growth_interval: int = 2000,
        device: str = "cpu",
        width: int = 32,
    ) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(8, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 4)]
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            if optimizer == "sgd"
            else torch.optim.Adam(self.model.parameters(), lr=1e-2, fused=optimizer == "fused")
        )
        enabled = dtype is torch.float16
        self.scaler = torch.amp.GradScaler(
            device, init_scale=init_scale, growth_interval=growth_interval, enabled=enabled
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda epoch: 0.9**epoch)
        self.k, self.divide, self.clip, self.zero_every, self.dtype = k, divide, clip, zero_every, dtype
        self.device = device
        self.count = first - 1

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(self.device, dtype=self.dtype):
            return functional.cross_entropy(self.model(x), y)

    def step(self, batch: Batch) -> Tensor:
        if self.zero_every:
            self.optimizer.zero_grad()
        loss = self.loss(*batch)
        backward(self.scaler.scale(loss / self.k if self.divide == "loss" else loss))
        self.count += 1
        if self.count % self.k == 0:
            self.update()
        return loss

    def update(self) -> None:
        if self.clip == "unscaled" or self.divide == "gradients":
            self.scaler.unscale_(self.optimizer)
        if self.divide == "gradients":
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self.k
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.scaler.get_scale() >= before:
            self.scheduler.step()

    def whole(self, batch: Batch) -> None:
        backward(self.scaler.scale(self.loss(*batch)))
        self.update()

    def save(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: getattr(self, name).state_dict() for name in names}

    def load(self, checkpoint: dict[str, Any]) -> None:
        for name, state in checkpoint.items():
            getattr(self, name).load_state_dict(state)


def batches(sizes: tuple[int, ...] = (8,) * 8, device: str = "cpu") -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    x: Any = torch.randn(sum(sizes), 8, generator=generator).to(device)
    return list(zip(x.split(sizes), x[:, :4].argmax(1).split(sizes), strict=True))


def replay(trainer: Trainer, sizes: tuple[int, ...] = (8,) * 8, device: str = "cpu") -> Replay:
    """Return a replay of the trainer's steps after one run, like the user's own run."""
    again = Replay(trainer.step, batches(sizes, device))
    again.run()
    return again


def message(check: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """Return the message of a failing assertion."""
    with pytest.raises(AssertionError) as failed:
        check(*args, **kwargs)
    return str(failed.value)


def bits(trainer: Trainer) -> list[Any]:
    """Return all state that must be unchanged, as values that compare bit for bit."""
    state = [*trainer.model.parameters(), *trainer.model.buffers()]
    moments = [value for slot in trainer.optimizer.state.values() for value in slot.values()]
    tensors = [each.detach() for each in [*state, *moments] if isinstance(each, Tensor)]
    return [
        *(tensor.numpy().tobytes() for tensor in tensors),
        [p.grad is None for p in trainer.model.parameters()],
        trainer.scaler.state_dict(),
        trainer.scheduler.last_epoch,
        trainer.optimizer.param_groups[0]["lr"],
        trainer.count,
        trainer.model.training,
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
    ]


class TestReplay:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "fused"])
    def test_the_same_steps_give_the_same_bits_and_everything_comes_back(self, optimizer: str) -> None:
        trainer = Trainer(optimizer=optimizer, dropout=0.5, growth_interval=3, k=2)
        again = Replay(trainer.step, batches())
        begin = bits(trainer)
        again.run()
        end = bits(trainer)
        assert begin != end
        objects = [id(each) for each in [trainer.model, trainer.optimizer, *trainer.model.parameters()]]
        with again.rewind():
            assert bits(trainer) == begin
            assert trainer.scaler._scale is None
            assert trainer.optimizer.state == {}
            again.run()
            assert bits(trainer) == end
            again.start_snapshot.restore()
            again.call_step(0)
        assert bits(trainer) == end
        assert [id(each) for each in [trainer.model, trainer.optimizer, *trainer.model.parameters()]] == objects

    def test_everything_comes_back_after_an_exception(self) -> None:
        trainer = Trainer()
        again = replay(trainer)
        end = bits(trainer)
        patched = [ENGINE._engine_run_backward, *vars(SCALER).values()]
        enter = REGION.__enter__

        def broken(checkpoint: object) -> None:
            next(trainer.model.parameters()).data.zero_()
            raise KeyError("scaler")

        with pytest.raises(KeyError):
            assert_resumes(again, lambda: trainer.save(ALL), broken)
        message(assert_matches_fp32, replay(Trainer(clip="scaled")), rtol=0.02)
        trainer_end = bits(trainer)
        assert trainer_end[:-2] == end[:-2]
        assert [ENGINE._engine_run_backward, *vars(SCALER).values()] == patched
        assert REGION.__enter__ is enter

    def test_what_a_replay_changes_itself_is_put_back(self) -> None:
        model = nn.BatchNorm1d(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(3)
        notes: dict[str, Any] = {"seen": [], "last": None}
        bag = types.SimpleNamespace(total=0)
        number = itertools.count(7)
        numbers: list[int] = []

        def step(x: Tensor) -> None:
            numbers.append(next(number))
            bag.total += 1
            notes["seen"].append(float(torch.rand((), generator=generator)))
            notes["new"] = True
            x += 1
            model.eval()
            model.weight.requires_grad_(False)
            model.bias.data = model.bias.data.clone() + 1
            model(x)
            optimizer.param_groups[0]["lr"] *= 0.5

        x = torch.zeros(2, 3)
        bias = model.bias.data_ptr()
        again = Replay(step, [x])
        again.run()
        seen = list(notes["seen"])
        with again.rewind():
            assert notes == {"seen": [], "last": None}
            assert (bag.total, numbers, optimizer.param_groups[0]["lr"]) == (0, [], 0.1)
            assert (model.training, model.weight.requires_grad, model.bias.data_ptr()) == (True, True, bias)
            assert x.tolist() == [[0.0] * 3] * 2
            again.run()
            assert notes["seen"] == seen and numbers == [7]
        assert (model.training, model.weight.requires_grad) == (False, False)
        assert (bag.total, numbers, x.sum().item()) == (1, [7], 6.0)

    def test_state_is_found_wherever_a_step_keeps_it(self) -> None:
        class Slotted:
            __slots__ = ("scaler",)

            def __init__(self) -> None:
                self.scaler = torch.amp.GradScaler("cpu")

        holder = Slotted()
        model, other = nn.Linear(2, 2), nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def inner(x: Tensor) -> Tensor:
            return torch.as_tensor(model(x))

        @autocast("cpu", dtype=torch.bfloat16)  # type: ignore[untyped-decorator]
        def forward(x: Tensor) -> Tensor:
            return 2 * inner(x)

        def step(teacher: nn.Module, batch: Tensor, opt: torch.optim.Optimizer = optimizer) -> None:
            holder.scaler.scale(forward(batch).sum() + teacher(batch).sum())

        found = Replay(functools.partial(step, other), [torch.ones(1, 2)]).find_state()
        assert set(map(id, found.models.values())) == {id(model), id(other)}
        assert list(found.optimizers.values()) == [optimizer]
        assert found.scalers == {"holder.scaler": holder.scaler}

    def test_only_given_state_is_rewound_but_counters_are(self) -> None:
        model, other = nn.Linear(1, 1), nn.Linear(1, 1)
        calls = 0

        def step(batch: Tensor) -> None:
            nonlocal calls
            calls += 1
            for each in (model, other):
                each.weight.data.fill_(calls)

        again = Replay(step, [torch.ones(1)], steps=3, state=[model])
        weight = model.weight.item()
        again.run()
        with again.rewind():
            assert (calls, model.weight.item(), other.weight.item()) == (0, weight, 3.0)
        assert (calls, model.weight.item()) == (3, 3.0)

    def test_batches_go_round(self) -> None:
        seen: list[int] = []
        model = nn.Linear(1, 1)
        Replay(seen.append, [1, 2, 3], steps=7, state=[model]).run()
        assert seen == [1, 2, 3, 1, 2, 3, 1]

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"step": None}, "step is None, not a function: pass the function that trains on one batch"),
            ({"batches": []}, "batches is empty: pass at least one batch"),
            ({"batches": torch.ones(3)}, "batches is a Tensor: pass a list of batches or a data loader"),
            ({"batches": itertools.count()}, "batches never ends: pass steps"),
            ({"steps": 0}, "steps is 0: pass how many times the step is to run"),
            ({"steps": True}, "steps is True: pass how many times the step is to run"),
            ({"state": ["model"]}, "state holds a str: pass models, optimizers, scalers and schedulers"),
            ({"step": len}, "no model and no optimizer was found that the step uses: pass state="),
        ],
    )
    def test_what_cannot_run_again_is_refused(self, changed: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=f"^{says}"):
            Replay(**{"step": Trainer().step, "batches": batches(), **changed})

    def test_an_iterator_cannot_be_rewound(self) -> None:
        model, rows = nn.Linear(1, 1), iter([1, 2, 3])

        def step(batch: int) -> float:
            return float(model(torch.full((1,), float(next(rows)))))

        with pytest.raises(ValueError, match="draws from `rows`, an iterator that cannot be rewound"):
            assert_matches_fp32(Replay(step, [0]), rtol=0.1)


def step_in_bfloat16(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """Train a classifier by one step, and return the loss."""
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(batch[0]), batch[1])
    backward(loss)
    optimizer.step()
    return loss


class TestMatchesFloat32:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "fused"])
    @pytest.mark.parametrize(
        "kwargs",
        [{}, {"k": 2}, {"dropout": 0.5}, {"clip": "unscaled"}, {"dtype": torch.bfloat16}, {"init_scale": 2.0**40}],
        ids=str,
    )
    def test_right_trainers_match(self, optimizer: str, kwargs: dict[str, Any]) -> None:
        trainer = Trainer(optimizer=optimizer, **kwargs)
        again = replay(trainer)
        end = bits(trainer)
        assert_matches_fp32(again, rtol=0.01)
        assert bits(trainer) == end

    @pytest.mark.parametrize("seed", range(3))
    def test_a_gradient_that_is_noise_at_one_step_is_not_compared(self, seed: int) -> None:
        """The first step of RMSprop moves each element by the same amount, in the direction of the gradient's sign."""
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)]
        model = nn.Sequential(*layers)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        batches = [(torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,))) for _ in range(3)]

        step = functools.partial(step_in_bfloat16, model, optimizer)
        assert_matches_fp32(Replay(step, batches, steps=8), rtol=0.05)

    @pytest.mark.parametrize("average", ["by hand", "swa_utils"])
    def test_an_average_of_noise_is_not_compared(self, average: str) -> None:
        """The gradient of a bias before BatchNorm is zero but for rounding."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))
        copied = (
            torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda old, new, _: old.lerp(new, 0.1))
            if average == "swa_utils"
            else copy.deepcopy(model).requires_grad_(False)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        batches = [(torch.randn(16, 10), torch.randint(0, 2, (16,))) for _ in range(8)]

        def step(batch: Batch) -> Tensor:
            loss = step_in_bfloat16(model, optimizer, batch)
            if isinstance(copied, torch.optim.swa_utils.AveragedModel):
                copied.update_parameters(model)
            else:
                with torch.no_grad():
                    for old, new in zip(copied.parameters(), model.parameters(), strict=True):
                        old.lerp_(new, 0.1)
            return loss

        assert_matches_fp32(Replay(step, batches, steps=8), rtol=0.05)

    def test_a_penalty_that_overflows_at_the_first_scale_is_no_difference(self) -> None:
        """The gradient penalty of PyTorch's documentation: the scaler skips the step and halves the scale."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)

        def step(batch: Tensor) -> Tensor:
            optimizer.zero_grad()
            x = batch.clone().requires_grad_()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(x)
                loss = functional.softplus(output).mean()
            (gradient,) = torch.autograd.grad(scaler.scale(output.float().sum()), x, create_graph=True)
            gradient = gradient * (1.0 / scaler.get_scale())
            with torch.autocast("cpu", dtype=torch.float16):
                total: Tensor = loss + gradient.norm(2, dim=1).square().mean()
            backward(scaler.scale(total))
            scaler.step(optimizer)
            scaler.update()
            return total

        batches = [torch.randn(8, 8) for _ in range(3)]
        assert not torch.isfinite(step(batches[0]))
        assert not torch.isfinite(step(batches[0])), "the replay begins with a loss that is not finite"
        assert_matches_fp32(Replay(step, batches, steps=12), rtol=0.05)

    def test_a_loss_that_stays_infinite_is_a_difference(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        calls = 0

        def step(batch: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(batch)
                # 70000 is infinite in float16, from the second step on.
                loss: Tensor = (output * (1.0 if calls == 1 else 7e4)).mean()
            backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            return loss

        says = message(assert_matches_fp32, Replay(step, [torch.ones(2, 4)], steps=4), rtol=0.1, what="loss")
        assert says.startswith("the losses part at step 2 of 4: ")

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "fused"])
    def test_clipping_scaled_gradients_shows(self, optimizer: str) -> None:
        says = message(assert_matches_fp32, replay(Trainer(optimizer=optimizer, clip="scaled")), rtol=0.01)
        assert "the first update is made from gradients of norm 9.77e-05, in float32 of 0.1" in says
        assert "call scaler.unscale_(optimizer) before" in says

    def test_where_losses_part(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        calls = 0

        def step(batch: Tensor) -> float:
            nonlocal calls
            calls += 1
            with torch.autocast("cpu", dtype=torch.float16):
                y = model(batch)
                # 4096 + 1 is 4096 in float16, from the third step on.
                add = (4096.0 if calls > 2 else 0.0) + y * 0
                return float(((add.to(y.dtype) + 1) - add.to(y.dtype)).mean().detach())

        says = message(assert_matches_fp32, Replay(step, [torch.ones(1, 4)], steps=5), rtol=0.1, what="loss")
        assert says.startswith("the losses part at step 3 of 5: 0 under autocast, 1 in float32, 100 % apart")
        assert "float16 without a GradScaler" in says

    def test_nested_disabled_and_decorated_regions_are_all_off(self) -> None:
        # The weight cache of autocast ignores the dtype: a weight has one cast in a region.
        model, other = nn.Linear(4, 4), nn.Linear(4, 4)
        observed = Observed()

        @autocast("cpu", dtype=torch.bfloat16)  # type: ignore[untyped-decorator]
        def forward(x: Tensor) -> Tensor:
            y = model(x)
            with torch.autocast("cpu", enabled=False), torch.amp.autocast("cpu", dtype=torch.float16):
                z = other(x)
            for each in (y, z):
                observed.append(each.dtype)
            return torch.as_tensor(y.float().sum() + z.float().sum())

        assert_matches_fp32(Replay(forward, [torch.ones(1, 4)]), rtol=0.1)
        half = [torch.bfloat16, torch.float16]
        assert Observed.every == [*half, torch.float32, torch.float32]
        assert not torch.is_autocast_enabled("cpu")

    def test_a_cast_by_hand_is_named(self) -> None:
        model = nn.Linear(4, 4)

        def step(x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.as_tensor(model(x.bfloat16()).sum())

        says = message(assert_matches_fp32, Replay(step, [torch.ones(1, 4)]), rtol=0.1)
        assert says.startswith("the steps do not run with autocast off: ")
        assert "casts to a low precision by hand" in says

    def test_frozen_low_weights_whose_inputs_autocast_casts_are_in_float32(self) -> None:
        torch.manual_seed(0)
        base, teacher = nn.Linear(4, 4).half().requires_grad_(False), nn.Linear(4, 4).half().requires_grad_(False)
        base.register_buffer("table", torch.eye(4).half())
        adapter = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(adapter.parameters(), lr=0.01)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = (base(x) + adapter(x)) @ base.table + teacher(x.to(teacher.weight.dtype))
                loss = out.float().square().mean()
            backward(loss)
            optimizer.step()
            return torch.as_tensor(loss)

        assert_matches_fp32(Replay(step, [torch.ones(2, 4)], steps=3), rtol=0.01)
        assert (base.weight.dtype, base.table.dtype, adapter.weight.dtype) == (*2 * [torch.float16], torch.float32)

    def test_steps_that_do_not_repeat_themselves(self) -> None:
        model = nn.Linear(4, 4)

        def step(x: Tensor) -> float:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return float(model(x).detach().sum()) + Observed.draw()

        assert "gave other losses when they ran again" in message(
            assert_matches_fp32, Replay(step, [torch.ones(1, 4)]), rtol=0.0, what="loss"
        )

    @pytest.mark.parametrize(
        ("kwargs", "says"),
        [
            ({"rtol": -1.0}, "rtol is -1.0: pass a number"),
            ({"rtol": True}, "rtol is True: pass a number"),
            ({"rtol": 0.1, "atol": float("inf")}, "atol is inf: pass a number"),
            ({"rtol": 0.1, "what": "weights"}, "what is 'weights': pass \"loss\""),
        ],
    )
    def test_bad_arguments(self, kwargs: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=f"^{says}"):
            assert_matches_fp32(Replay(Trainer().step, batches()), **kwargs)

    def test_nothing_to_compare(self) -> None:
        model = nn.Linear(8, 1)
        with pytest.raises(ValueError, match="enter no enabled autocast region"):
            assert_matches_fp32(Replay(lambda batch: model(batch[0]).sum(), batches()), rtol=0.1)


class Observed(list[Any]):
    """A list whose content is shared by all replays: class attributes are not rewound."""

    every: list[Any] = []  # noqa: RUF012
    numbers = itertools.count()

    def append(self, item: Any) -> None:
        Observed.every.append(item)

    @classmethod
    def draw(cls) -> float:
        return float(next(cls.numbers))


class TestAccumulation:
    @pytest.mark.parametrize("whole", [False, True])
    @pytest.mark.parametrize(
        ("optimizer", "kwargs"),
        [
            *itertools.product(["sgd", "adam", "fused"], [{}, {"clip": "unscaled"}, {"dropout": 0.5}]),
            # Their steps are skipped until the scale is low enough, which takes as long as all others together.
            pytest.param("sgd", {"init_scale": 2.0**40}, marks=pytest.mark.exhaustive),
            pytest.param("adam", {"init_scale": 2.0**40}, marks=pytest.mark.exhaustive),
            ("fused", {"init_scale": 2.0**40}),
            # A fused optimizer unscales gradients itself, so there is no point at which to divide them.
            *itertools.product(["sgd", "adam"], [{"divide": "gradients"}]),
        ],
        ids=str,
    )
    def test_right_windows(self, optimizer: str, kwargs: dict[str, Any], whole: bool) -> None:
        trainer = Trainer(k=4, optimizer=optimizer, **kwargs)
        again = Replay(trainer.step, batches(), steps=120 if "init_scale" in kwargs else 8)
        again.run()
        end = bits(trainer)
        one = Whole(trainer).step if whole else None
        assert_accumulation_equivalent(again, 4, whole=one)
        assert bits(trainer) == end

    @pytest.mark.parametrize("whole", [False, True])
    @pytest.mark.parametrize("clip", ["", "unscaled"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "fused"])
    def test_an_undivided_loss_weighs_k(self, optimizer: str, clip: str, whole: bool) -> None:
        trainer = Trainer(k=4, optimizer=optimizer, divide="", clip=clip)
        one = Whole(trainer).step if whole else None
        says = message(assert_accumulation_equivalent, replay(trainer), 4, whole=one)
        assert says == (
            "the update is 4.00 times the full batch's: the loss of each micro-batch is not divided by 4. "
            "Write scaler.scale(loss / 4).backward()"
        )

    def test_a_loss_divided_twice(self) -> None:
        trainer = Trainer(k=4)
        again = Replay(lambda batch: twice(trainer, batch), batches())
        assert message(assert_accumulation_equivalent, again, 4).startswith(
            "the update is 0.25 times the full batch's: the loss is divided by 4 twice"
        )

    def test_off_by_one(self) -> None:
        says = message(assert_accumulation_equivalent, replay(Trainer(k=4, first=4)), 4)
        assert says == (
            "an update is made of 1 micro-batch, not 4: the windows hold 1, 4: "
            "`i % 4 == 0` is true for the first micro-batch; step when `(i + 1) % 4 == 0`"
        )

    def test_another_k(self) -> None:
        says = message(assert_accumulation_equivalent, replay(Trainer(k=2)), 4)
        assert says.startswith("an update is made of 2 micro-batches, not 4: the windows hold 2, 2, 2, 2: step")

    def test_zeroed_in_the_window(self) -> None:
        says = message(assert_accumulation_equivalent, replay(Trainer(k=4, zero_every=True)), 4)
        assert says.startswith("the gradients are cleared inside the window of 4 micro-batches, before call 2 runs")

    def test_no_update(self) -> None:
        says = message(assert_accumulation_equivalent, replay(Trainer(k=16)), 16)
        assert says.startswith("no optimizer stepped in 8 calls of the step: run at least 16 micro-batches")

    def test_micro_batches_of_different_sizes(self) -> None:
        sizes = (8, 8, 2, 2)
        says = message(assert_accumulation_equivalent, replay(Trainer(k=4), sizes), 4)
        assert says.startswith(
            "micro-batches of 8, 8, 2, 2 samples count 0.25, 0.25, 0.25, 0.25: the mean of their means"
        )
        trainer = Trainer(k=4)
        says = message(assert_accumulation_equivalent, replay(trainer, sizes), 4, whole=Whole(trainer).step)
        assert "micro-batches of different sizes" in says

    @pytest.mark.parametrize("mean_of", [20, 8])
    def test_sums_divided_by_the_tokens_of_the_window(self, mean_of: int) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        calls = 0

        def step(batch: Batch) -> None:
            nonlocal calls
            loss = nn.CrossEntropyLoss(reduction="sum")(model(batch[0]), batch[1]) / mean_of
            backward(loss)
            calls += 1
            if calls % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

        again = Replay(step, batches((8, 8, 2, 2)))
        if mean_of == 20:
            assert_accumulation_equivalent(again, 4)
        else:
            with pytest.raises(ValueError, match=r"weigh 2.5, which may be right or wrong: pass whole="):
                assert_accumulation_equivalent(again, 4)

    def test_a_loss_of_its_own_needs_the_full_batch(self) -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = {"i": 0}

        def step(batch: Batch, k: int = 2) -> None:
            backward(((model(batch[0]) - 1) ** 2).mean().div(k))
            state["i"] += 1
            if state["i"] % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

        def whole(batch: Batch) -> None:
            backward(((model(batch[0]) - 1) ** 2).mean())
            optimizer.step()

        again = Replay(step, batches())
        with pytest.raises(ValueError, match="no loss function of torch was seen"):
            assert_accumulation_equivalent(again, 2)
        assert_accumulation_equivalent(again, 2, whole=whole, rtol=1e-5)
        with pytest.raises(ValueError, match=r"whole\(\) stepped the optimizer 0 times"):
            assert_accumulation_equivalent(again, 2, whole=lambda batch: backward(model(batch[0]).sum()))

    @pytest.mark.parametrize("k", [1, 0, 2.0, True])
    def test_bad_k(self, k: Any) -> None:
        with pytest.raises(ValueError, match=f"^k is {k!r}: pass how many micro-batches make one update"):
            assert_accumulation_equivalent(replay(Trainer()), k)


class Whole:
    """A full batch's step of a trainer, which divides nothing."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def step(self, batch: Batch) -> None:
        trainer = self.trainer
        backward(trainer.scaler.scale(trainer.loss(*batch)))
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()


def twice(trainer: Trainer, batch: Batch) -> None:
    """Run a step whose loss is divided by the framework, too."""
    backward(trainer.scaler.scale(trainer.loss(*batch) / 4 / 4))
    trainer.count += 1
    if trainer.count % 4 == 0:
        trainer.update()


class TestResume:
    @pytest.mark.parametrize("path", [False, True])
    @pytest.mark.parametrize(
        "kwargs",
        [{}, {"optimizer": "adam", "k": 2}, {"optimizer": "fused", "growth_interval": 3}, {"dtype": torch.bfloat16}],
        ids=str,
    )
    def test_complete_checkpoints(self, kwargs: dict[str, Any], path: bool) -> None:
        trainer = Trainer(**kwargs)
        again = replay(trainer)
        end = bits(trainer)
        if path:
            assert_resumes(
                again,
                lambda file: torch.save(trainer.save(ALL), file),
                lambda file: trainer.load(torch.load(file, weights_only=True)),
            )
        else:
            assert_resumes(again, lambda: trainer.save(ALL), trainer.load)
        assert bits(trainer) == end

    @pytest.mark.parametrize(
        ("left_out", "kwargs", "says"),
        [
            (
                "scaler",
                {"growth_interval": 3},
                (
                    "  - the scaler `scaler` (scale 2048.0, now 1024.0; growth_tracker 1, now 0). "
                    'Save "scaler": scaler.state_dict(), and load it with scaler.load_state_dict(...)'
                ),
            ),
            ("scaler", {}, "  - the scaler `scaler` (growth_tracker 4, now 0)."),
            ("scheduler", {}, "  - the scheduler `scheduler` (last_epoch 4, now 0;"),
            ("optimizer", {"optimizer": "adam"}, "lost: state.0.step, state.0.exp_avg, state.0.exp_avg_sq and 9 more)"),
            ("model", {}, "  - the model `model` (0.weight, 0.bias, 3.weight and 1 more)."),
        ],
    )
    def test_what_is_missing_is_named(self, left_out: str, kwargs: dict[str, Any], says: str) -> None:
        trainer = Trainer(**kwargs)
        names = tuple(name for name in ALL if name != left_out)
        said = message(assert_resumes, replay(trainer), lambda: trainer.save(names), trainer.load)
        assert said.startswith("training saved after 4 steps does not go on as it was: ")
        assert says in said
        others = [name for name in names if f"`{name}` (" in said]
        assert others == []

    def test_random_states(self) -> None:
        trainer = Trainer(dropout=0.5)

        def step(batch: Batch) -> Tensor:
            return trainer.step((batch[0] * (1 + random.random()), batch[1]))  # noqa: S311

        again = Replay(step, batches())
        again.run()
        said = message(assert_resumes, again, lambda: trainer.save(ALL), trainer.load)
        assert '  - the random state of torch. Save "torch": torch.get_rng_state()' in said
        assert '  - the random state of random. Save "random": random.getstate()' in said

        def save() -> dict[str, Any]:
            return {"rest": trainer.save(ALL), "torch": torch.get_rng_state(), "random": random.getstate()}

        def load(checkpoint: dict[str, Any]) -> None:
            trainer.load(checkpoint["rest"])
            torch.set_rng_state(checkpoint["torch"])
            random.setstate(checkpoint["random"])

        assert_resumes(again, save, load)

    def test_an_open_window(self) -> None:
        trainer = Trainer(k=4)
        said = message(assert_resumes, replay(trainer), lambda: trainer.save(ALL), trainer.load, at=2)
        assert "  - the gradients of an open window" in said
        assert "`count` (2 when saved, 0 now)" in said

    def test_gradients_that_the_next_step_clears_are_no_state(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(batch: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(batch).square().mean()
            backward(loss)
            optimizer.step()
            return loss

        again = Replay(step, [torch.randn(8, 4) for _ in range(6)])
        saved = {"model": model.state_dict()}
        said = message(assert_resumes, again, lambda: saved, lambda held: model.load_state_dict(held["model"]))
        assert "the optimizer `optimizer`" in said
        assert "gradients" not in said

    def test_saving_may_not_change_anything(self) -> None:
        trainer = Trainer(dropout=0.5)

        def save() -> dict[str, Any]:
            torch.rand(1)
            return {"rest": trainer.save(ALL), "torch": torch.get_rng_state()}

        def load(checkpoint: dict[str, Any]) -> None:
            trainer.load(checkpoint["rest"])
            torch.set_rng_state(checkpoint["torch"])

        said = message(assert_resumes, replay(trainer), save, load)
        assert "save() itself changes the random state of torch: it must only read." in said

    def test_within_a_tolerance(self) -> None:
        trainer = Trainer()

        def save() -> dict[str, Any]:
            checkpoint = trainer.save(ALL)
            checkpoint["model"] = {name: value * (1 + 1e-6) for name, value in checkpoint["model"].items()}
            return checkpoint

        again = replay(trainer)
        message(assert_resumes, again, save, trainer.load)
        assert_resumes(again, save, trainer.load, rtol=1e-2)

    @pytest.mark.parametrize(
        ("kwargs", "says"),
        [
            ({"at": 0}, "at is 0: pass after how many steps to save, from 1 to 7"),
            ({"at": 8}, "at is 8: pass after how many steps to save, from 1 to 7"),
            ({"save": "file.pt"}, "save is 'file.pt', not a function"),
            ({"save": lambda: None}, r"save\(\) returned nothing"),
            ({"save": lambda: (each for each in "ab")}, r"what save\(\) returned cannot be copied"),
            ({"rtol": None}, "rtol is None: pass a number"),
        ],
    )
    def test_bad_arguments(self, kwargs: dict[str, Any], says: str) -> None:
        trainer = Trainer()
        arguments = {"save": lambda: trainer.save(ALL), "load": trainer.load, **kwargs}
        with pytest.raises(ValueError, match=f"^{says}"):
            assert_resumes(replay(trainer), **arguments)


class TestSpeedup:
    def test_it_is_not_decided_on_an_emulated_gpu(self) -> None:
        with emulate_cuda():
            again = replay(Trainer(device="cuda"), device="cuda")
            assert_matches_fp32(again, rtol=0.01)
            with pytest.raises(UnavailableError, match=r"^no CUDA device: a speedup can only be measured"):
                assert_speedup(again, over_fp32=1.1)

    def test_it_is_not_decided_without_a_gpu(self) -> None:
        with pytest.raises(UnavailableError, match=r"no CUDA device|the model is on cpu"):
            assert_speedup(replay(Trainer()), over_fp32=1.1)

    @pytest.mark.parametrize("factor", [0, -1.0, True, "2x", float("nan")])
    def test_bad_factors(self, factor: Any) -> None:
        with pytest.raises(ValueError, match=r"^over_fp32 is .*: pass the factor that is expected"):
            assert_speedup(replay(Trainer()), over_fp32=factor)


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    Observed.every.clear()
    before = ENGINE._engine_run_backward
    yield
    assert ENGINE._engine_run_backward is before
    assert not torch.is_autocast_enabled("cpu")
