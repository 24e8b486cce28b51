"""Accuracy of what-if answers from one recorded step, compared with recordings of the changed model."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarking import benchmark
from torch import nn
from torch.nn import functional

from pytest_amp_check import record
from pytest_amp_check.runtime.measure.estimate import estimate_memory
from pytest_amp_check.runtime.measure.memory import Memory, measure_memory
from pytest_amp_check.runtime.measure.what_if import WhatIf, WhatIfs

pytestmark = pytest.mark.usefixtures("patched_once")

WHAT_IF = benchmark("what_if")

#: Largest relative difference between an answer and the peak of the changed model.
OFF = 0.02


def has_low_lstm() -> bool:
    """Return True if this CPU has a kernel for LSTM in bfloat16, which needs AVX512."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "optimizer", "autocast", "fewest"),
    [
        ("weights", "SGD", False, 11),
        pytest.param("lstm", "AdamW", True, 8, marks=pytest.mark.instruction_set),
        ("moe", "SGD", False, 11),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ("mlp", "AdamW", False, 11),
                ("resnet", "AdamW", True, 11),
                ("weights", "AdamW", False, 11),
                ("transformer", "AdamW", False, 11),
                ("gru", "AdamW", False, 9),
                ("unet", "AdamW", False, 13),
                ("pixels", "AdamW", False, 13),
            )
        ),
    ],
)
def test_answers_are_what_the_changed_model_needs(
    program: str, optimizer: str, autocast: bool, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps suffice, because all later steps are equal. The benchmark runs three steps and larger batches."""
    programs = WHAT_IF["PROGRAMS"]
    short = programs["gru"]._replace(batch=lambda size: torch.randint(300, (size, 8)))
    smaller = {"moe": programs["moe"]._replace(size=64), "transformer": programs["transformer"]._replace(size=4)}
    for name, changed in {"gru": short, **smaller}.items():
        monkeypatch.setitem(programs, name, changed)
    settings = (("foreach", True),) if optimizer == "SGD" else ()
    # On a CPU without low-precision LSTM, the same number of answers is compared without autocast.
    autocast = autocast and (program != "lstm" or has_low_lstm())
    found = list(WHAT_IF["compared"](WHAT_IF["Recipe"](program, optimizer, autocast, settings=settings, steps=2)))
    answered = [each for each in found if each.error is not None]
    assert len(answered) >= fewest
    assert {each.answer.change: each.error for each in answered if abs(each.error) > OFF} == {}


class Row(nn.Module):
    def __init__(self, depth: int = 3, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 8 * width), nn.Tanh(), nn.Linear(8 * width, width)) for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def measured(
    model: nn.Module,
    batch: Callable[[], torch.Tensor],
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda out: out.square().mean(),
    **settings: Any,
) -> Memory:
    stepped = optimizer(model.parameters(), **settings)
    with measure_memory(model, stepped) as memory:
        for _ in range(2):
            stepped.zero_grad()
            loss(model(batch())).backward()  # type: ignore[no-untyped-call]
            stepped.step()
    return memory


def answer(memory: Memory, change: str) -> WhatIf:
    return next(each for each in memory.what_if() if each.change == change)


def test_an_answer_says_what_is_saved_and_what_to_write() -> None:
    memory = measured(Row(), lambda: torch.randn(256, 32))
    answers = memory.what_if()
    assert answers.peak == memory.peak
    reported = answer(memory, "checkpoint layers (3 modules)")
    assert reported.peak is not None
    assert reported.saved == memory.peak - reported.peak
    assert reported.how.endswith("use_reentrant=False) for layers.0, layers.1, layers.2")
    assert reported == memory.what_if(checkpoint=["layers.0", "layers.1", "layers.2"])[0]._replace(
        change=reported.change
    )


def test_those_that_save_most_come_first_and_those_without_an_answer_last() -> None:
    answers = measured(Row(), lambda: torch.randn(15, 32), torch.optim.Rprop).what_if()
    saved = [each.saved for each in answers if each.saved is not None]
    assert saved == sorted(saved, reverse=True)
    assert [each.change for each in answers if each.saved is None] == [
        "fused optimizer",
        "1/2 of the batch",
        "2 micro-batches, accumulated",
        "1/4 of the batch",
        "4 micro-batches, accumulated",
    ]
    assert answer_reasons(answers) == [
        "Rprop has no argument fused",
        "a batch of 15 cannot be cut into 2",
        "a batch of 15 cannot be cut into 2",
        "a batch of 15 cannot be cut into 4",
        "a batch of 15 cannot be cut into 4",
    ]


def answer_reasons(answers: list[WhatIf]) -> list[str]:
    return [each.reason for each in answers if each.peak is None]


def test_they_are_a_table_to_read() -> None:
    answers = WhatIfs(
        [
            WhatIf("fused optimizer", None, None, "fused=True for the optimizer", "Rprop has no argument fused"),
            WhatIf("foreach optimizer", 5 * 2**20, -(2**20), "foreach=True for the optimizer"),
            WhatIf("checkpoint layers (3 modules)", 1536 * 2**10, 2560 * 2**10, "..."),
        ],
        peak=4 * 2**20,
    )
    assert repr(answers).splitlines() == [
        "The step needs 4.00 MiB. It would need",
        "    1.50 MiB  checkpoint layers (3 modules)  2.50 MiB less (62.5%)",
        "    5.00 MiB  foreach optimizer              1.00 MiB more (25.0%)",
        "           ?  fused optimizer                Rprop has no argument fused",
    ]


def test_a_module_that_did_not_run_is_named() -> None:
    reported = measured(Row(), lambda: torch.randn(8, 32)).what_if(checkpoint=["layers.7"])[0]
    assert (reported.peak, reported.saved) == (None, None)
    assert reported.reason == "no module called layers.7 ran in the recorded step"


def test_a_module_that_is_recomputed_already_has_no_answer() -> None:
    model = Row()
    WHAT_IF["recompute"](model.layers[1])
    memory = measured(model, lambda: torch.randn(64, 32))
    assert "was recomputed already" in memory.what_if(checkpoint=["layers.1"])[0].reason
    assert memory.what_if(checkpoint=["layers.0"])[0].saved > 0  # type: ignore[operator]


def test_casts_that_did_nothing_would_be_copies_with_low_weights() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = Row()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.row(x)
            return x.float() / x.to(torch.float32).std()

    reported = answer(measured(Norm(), lambda: torch.randn(512, 32)), "weights in bfloat16")
    assert reported.peak is None
    assert "128.00 KiB to float32" in reported.reason
    # The cast of a loss is too small to matter.
    reported = answer(
        measured(Row(), lambda: torch.randn(512, 32), loss=lambda out: out.mean().float()), "weights in bfloat16"
    )
    assert reported.peak is not None


def test_attention_that_torch_computes_otherwise_in_low_precision_has_no_answer() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    memory = measured(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), lambda: torch.randn(4, 8, 32))
    if all("_safe_softmax" not in str(op.func) for step in memory._storages.step_recording.steps for op in step.ops):
        pytest.skip("this torch has no _safe_softmax")
    assert "_safe_softmax" in answer(memory, "weights in bfloat16").reason


def test_shapes_that_depend_on_values_have_no_answer_for_a_smaller_batch() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = Row()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.row(x[x[:, 0] > 0])  # type: ignore[no-any-return]

    memory = measured(Picks(), lambda: torch.randn(64, 32))
    assert "cannot be told without values" in answer(memory, "1/2 of the batch").reason


def test_the_dimension_of_the_batch_is_asked_for() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = Row()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.row(x)  # type: ignore[no-any-return]

    memory = measured(First(), lambda: torch.randn(5, 64, 32))
    half = next(each for each in memory.what_if(batch_dim=1) if each.change == "1/2 of the batch")
    assert half.peak == measured(First(), lambda: torch.randn(5, 32, 32)).peak


def test_gradients_of_several_micro_batches_are_one_step() -> None:
    model = Row()
    recomputed = copy.deepcopy(model)
    WHAT_IF["recompute"](recomputed.layers[0])

    def peak(model: nn.Module) -> Memory:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with measure_memory(model, optimizer) as memory:
            for index in range(4):
                model(torch.randn(128, 32)).sum().backward()
                if index % 2:
                    optimizer.step()
                    optimizer.zero_grad()
        return memory

    reported = peak(model).what_if(checkpoint=["layers.0"])[0]
    assert reported.peak == pytest.approx(peak(recomputed).peak, rel=OFF)


def test_two_optimizers_need_what_the_larger_step_needs() -> None:
    small, large = Row(1), Row(3)
    optimizers = [torch.optim.SGD(small.parameters(), 0.1), torch.optim.AdamW(large.parameters())]
    with measure_memory(small, large) as memory:
        for _ in range(2):
            for model, optimizer in zip((small, large), optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.randn(64, 32)).sum().backward()
                optimizer.step()
    assert memory.what_if().peak == memory.peak


def test_a_recording_answers_too() -> None:
    model = Row()
    optimizer = torch.optim.AdamW(model.parameters())
    with record(model, memory=True) as run:
        for _ in range(2):
            optimizer.zero_grad()
            functional.mse_loss(model(torch.randn(64, 32)), torch.zeros(64, 32)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert run.memory is not None
    assert run.memory.what_if()[0].saved > 0  # type: ignore[operator]


def test_an_estimate_answers_too() -> None:
    with estimate_memory() as memory:
        model = Row().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(16, 32, device="cuda")).sum().backward()
            optimizer.step()
    with estimate_memory() as fused:
        model = Row().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(16, 32, device="cuda")).sum().backward()
            optimizer.step()
    assert answer(memory, "fused optimizer").peak == pytest.approx(fused.peak, rel=OFF)


def test_without_a_step_there_is_nothing_to_ask() -> None:
    with measure_memory(Row()) as memory:
        pass
    with pytest.raises(ValueError, match="needs a step of an optimizer"):
        memory.what_if()


def test_nothing_of_a_program_is_kept_alive_for_it() -> None:
    rate = torch.tensor(0.01)
    gone = weakref.ref(rate)
    memory = measured(Row(), lambda: torch.randn(64, 32), torch.optim.Adam, lr=rate)
    del rate
    gc.collect()
    assert gone() is None
    assert answer(memory, "fused optimizer").peak is not None


def test_casts_are_put_back() -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("float", "to", "type")}
    own = "float" in vars(torch.Tensor)
    with measure_memory(Row()), measure_memory(Row()):
        assert torch.ones(1).float().dtype is torch.float32
    assert {name: getattr(torch.Tensor, name) for name in before} == before
    assert ("float" in vars(torch.Tensor)) == own
