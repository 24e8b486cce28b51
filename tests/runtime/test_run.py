"""Data and assertions of a run, through ``record()``."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import json
import linecache
import re
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_amp_check import Run, record, run_steps  # noqa: E402
from pytest_amp_check.protocol.selection import UnknownRule  # noqa: E402

pytestmark = pytest.mark.usefixtures("patched_once")


class Trainer:
    """A linear model. ``blow`` makes the gradients of a step overflow."""

    def __init__(self, scale: float = 2.0**10, growth_interval: int = 2000) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)

    def step(self, *, blow: bool = False, clip: bool = False) -> float:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = self.model(torch.ones(8, 4)).square().mean()
        scaled = self.scaler.scale(loss * float("inf") if blow else loss)
        torch.autograd.backward(scaled)
        if clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return float(loss.detach())


def recorded(blows: list[bool], **how: Any) -> Run:
    trainer = Trainer(**how)
    with record() as run:
        for blow in blows:
            trainer.step(blow=blow)
    return run


def test_a_step_knows_what_it_did() -> None:
    trainer = Trainer()
    with record(norms=True) as run:
        loss = trainer.step()
        weight = trainer.model.weight.detach().clone()
        trainer.step(blow=True)
    taken, skipped = run.steps
    assert (taken.index, taken.optimizer, taken.scaler) == (0, "self.optimizer", "self.scaler")
    assert taken.loss == pytest.approx(loss, rel=1e-3)
    assert (taken.scale_before, taken.scale_after, taken.growth_tracker) == (1024.0, 1024.0, 1)
    assert (taken.skipped, taken.found_inf, skipped.skipped, skipped.found_inf) == (False, False, True, True)
    assert (skipped.scale_before, skipped.scale_after, skipped.growth_tracker) == (1024.0, 512.0, 0)
    assert torch.equal(trainer.model.weight, weight)
    assert taken.site.startswith(__file__)
    assert taken.grad_norm is not None
    before = Trainer()
    torch.autograd.backward(before.model(torch.ones(8, 4)).square().mean())
    grads = [p.grad for p in before.model.parameters() if p.grad is not None]
    assert taken.grad_norm == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()), rel=1e-2)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_loss_has_the_dtype_that_it_had_before_it_was_scaled(parts: int) -> None:
    trainer = Trainer()
    with record(trainer.model, dtypes=True) as run:
        with torch.autocast("cpu", dtype=torch.float16):
            output = trainer.model(torch.ones(8, 4))
        loss = output.square().mean()
        torch.autograd.backward(trainer.scaler.scale(loss) / parts)
    assert loss.dtype is torch.float16
    run.assert_dtypes({"loss": "float16"})
    with pytest.raises(AssertionError, match="Compute the loss inside the autocast region"):
        run.assert_dtypes({"loss": "float32"})


def test_the_first_step_of_an_optimizer_that_nothing_has_used_knows_its_loss() -> None:
    trainer = Trainer()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = trainer.model(torch.ones(8, 4)).square().mean()
    with record() as run:
        torch.autograd.backward(trainer.scaler.scale(loss))
        trainer.scaler.step(trainer.optimizer)
    assert run.steps[0].loss == pytest.approx(loss.item(), rel=1e-3)


def test_totals_and_history() -> None:
    run = recorded([False, True, True, False])
    assert (run.steps_total, run.skipped_total) == (4, 2)
    assert run.scale_history == [(0, 1024.0), (1, 512.0), (2, 256.0)]


def test_everything_is_plain_data() -> None:
    run = recorded([False, True])
    data = json.loads(json.dumps(run.as_dict()))
    assert [step["skipped"] for step in data["steps"]] == [False, True]
    assert (data["numerics"], data["memory"], data["dtypes"], data["findings"], data["failure"]) == (None,) * 3 + (
        [],
        None,
    )


def test_nothing_is_seen_outside() -> None:
    trainer = Trainer()
    trainer.step(clip=True)
    with record() as run:
        pass
    trainer.step(clip=True)
    assert (run.findings, run.steps_total) == ([], 0)


def test_findings_stay_after_an_exception() -> None:
    trainer = Trainer()
    context = record()

    def diverge() -> None:
        with context:
            trainer.step(clip=True)
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        diverge()
    assert [finding.code for finding in context.run.findings] == ["AMP201"]


def test_nested_recordings_see_the_same() -> None:
    trainer = Trainer()
    with record() as outer:
        trainer.step()
        with record() as inner:
            trainer.step(clip=True)
        trainer.step()
    assert [run.steps_total for run in (outer, inner)] == [3, 1]
    assert [[f.code for f in run.findings] for run in (outer, inner)] == [["AMP201"], ["AMP201"]]


def test_recordings_may_end_in_any_order() -> None:
    trainer = Trainer()
    first, second = record(), record()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    trainer.step()
    second.__exit__(None, None, None)
    trainer.step()
    assert [run.run.steps_total for run in (first, second)] == [0, 1]


def test_an_automatic_recording_gives_way() -> None:
    trainer = Trainer()
    with record(automatic=True) as automatic:
        trainer.step()
        with record() as explicit:
            trainer.step(clip=True)
        trainer.step()
    assert [run.steps_total for run in (automatic, explicit)] == [2, 1]
    assert automatic.findings == []


def test_another_thread_is_not_recorded() -> None:
    trainer = Trainer()
    with record() as run:
        thread = threading.Thread(target=trainer.step, kwargs={"clip": True})
        thread.start()
        thread.join()
    assert (run.findings, run.steps_total) == ([], 0)


def test_rules_are_chosen() -> None:
    trainer = Trainer()
    with record() as run:
        trainer.step(clip=True)
    assert run.select("AMP1").findings == []
    assert [finding.code for finding in run.select("clip-before-unscale").findings] == ["AMP201"]
    with pytest.raises(UnknownRule):
        run.select("AMP999")


def test_a_comment_silences() -> None:
    trainer = Trainer()
    with record() as run:
        trainer.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = trainer.model(torch.ones(8, 4)).square().mean()
        torch.autograd.backward(trainer.scaler.scale(loss))
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)  # amp: ignore[AMP201] that is the test
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    assert run.findings == []


def test_a_failed_assertion_shows_the_finding_its_trace_and_the_next_command() -> None:
    trainer = Trainer()
    with record() as run:
        trainer.step(clip=True)
    with pytest.raises(AssertionError) as caught:
        run.assert_no_findings()
    head, finding, *trace, explain = str(caught.value).splitlines()
    assert head == "1 mistake in mixed-precision training:"
    assert "AMP201 [error] clip-before-unscale" in finding
    # The loss is scaled before the line of its backward.
    assert len(trace) == 4
    assert explain.strip() == "amp-check explain AMP201"
    run.assert_no_findings(allow=["AMP201"])
    run.assert_no_findings(allow="clip-before-unscale")
    with pytest.raises(UnknownRule):
        run.assert_no_findings(allow=["AMP2O1"])


def test_a_run_without_a_step_has_shown_nothing() -> None:
    trainer = Trainer()
    with record() as run:
        trainer.model(torch.zeros(2, 4)).sum().backward()
    with pytest.raises(AssertionError, match="No training step was recorded"):
        run.assert_no_findings()
    run.assert_no_findings(allow_no_steps=True)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"minimum": 1024}, "the scale fell to 256 (2^8), below 1024 (2^10), first at step 1: gradients"),
        ({"maximum": 512}, "the scale rose to 1024 (2^10), above 512 (2^9), first at step 0"),
        ({"max_skipped": 1}, "2 of 4 steps were skipped, more than 1 (steps 1 to 2)"),
        ({"recovers_within": 1}, "2 steps in a row were skipped, more than 1 (steps 1 to 2): a loss"),
        ({"grows": True}, "the scale never grew: run longer than growth_interval"),
    ],
)
def test_a_scale_that_misbehaves(how: dict[str, Any], message: str) -> None:
    run = recorded([False, True, True, False])
    with pytest.raises(AssertionError) as caught:
        run.assert_scale(**how)
    assert message in str(caught.value)
    assert "scale: 1024 (2^10) from step 0, 512 (2^9) from step 1, 256 (2^8) from step 2" in str(caught.value)


def test_a_scale_that_begins_too_low_has_not_fallen() -> None:
    run = recorded([False, False])
    with pytest.raises(AssertionError) as caught:
        run.assert_scale(minimum=2048)
    said = (
        "the scale was 1024 (2^10), below 2048 (2^11), first at step 0, and no step was skipped: begin with a larger "
    )
    assert f"{said}`init_scale`" in str(caught.value)
    assert "overflow" not in str(caught.value)


def test_the_longest_row_of_skips_is_named() -> None:
    run = recorded([True, False, True, True, True, False, True, True, False, True])
    with pytest.raises(AssertionError) as caught:
        run.assert_scale(recovers_within=2, max_skipped=0)
    assert "7 of 10 steps were skipped, more than 0 (steps 0, 2 to 4, 6 to 7, 9)" in str(caught.value)
    assert "3 steps in a row were skipped, more than 2 (steps 2 to 4): a loss" in str(caught.value)


def test_a_scale_that_behaves() -> None:
    run = recorded([False, True, True, False])
    run.assert_scale(minimum=256, maximum=1024, max_skipped=2, recovers_within=2, grows=False)
    grown = recorded([False, False, False], growth_interval=2)
    grown.assert_scale(grows=True)
    with pytest.raises(AssertionError, match="the scale grew"):
        grown.assert_scale(grows=False)


def test_a_scale_that_was_never_used_is_no_success() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with record() as run:
        torch.autograd.backward(scaler.scale(model(torch.ones(1, 2)).sum()))
        scaler.step(optimizer)
        scaler.update()
    with pytest.raises(AssertionError, match="No enabled GradScaler made a step"):
        run.assert_scale(max_skipped=0)
    with pytest.raises(ValueError, match="nothing to check"):
        run.assert_scale()


@pytest.mark.parametrize(
    ("ask", "part"),
    [
        (lambda run: run.assert_dtypes({"loss": "float32"}), "dtypes"),
        (lambda run: run.assert_underflow(below=0.1), "numerics"),
        (lambda run: run.assert_memory(peak="1 GiB"), "memory"),
    ],
)
def test_a_part_that_was_not_recorded(ask: Any, part: str) -> None:
    run = recorded([False])
    with pytest.raises(ValueError, match=rf"recorded without its {part}: pass {part}=True to record\(\)"):
        ask(run)


def test_a_part_that_was_not_recorded_with_the_steps() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: Any) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    run = run_steps(step, [torch.ones(2, 4)])
    with pytest.raises(ValueError, match=r"pass memory=True to run_steps\(\)"):
        run.assert_memory(peak="1 GiB")


def test_what_has_to_run_again_says_how() -> None:
    run = recorded([False])
    with pytest.raises(ValueError, match=r"amp\.run\(step, batches\)"):
        run.assert_matches_fp32(rtol=0.1)


def test_the_parts_of_a_recording() -> None:
    trainer = Trainer()
    with record(trainer.model, dtypes=True, numerics=True, memory=True) as run:
        trainer.step()
        trainer.step()
    run.assert_dtypes({"": "float16", "parameters": "float32", "gradients": "float32"})
    run.assert_underflow(below=0.5)
    # Four weights and a bias, in float32.
    run.assert_memory(parameters=20, gradients=20)
    with pytest.raises(AssertionError, match="parameters"):
        run.assert_memory(parameters=19)


def test_objects_that_are_gone_do_not_pile_up() -> None:
    with record() as run:
        for _ in range(100):
            Trainer().step()
    assert run.steps_total == 100
    assert len(run._recorder.recording.program.objects) <= 8
    registry = run._recorder.recording.registry
    assert (len(registry.optimizers), len(registry.scalers), len(registry.owner_keys)) == (0, 0, 0)
    assert run.findings == []


def test_a_missing_update_is_reported_after_its_optimizer_is_gone() -> None:
    def once() -> None:
        trainer = Trainer()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = trainer.model(torch.ones(8, 4)).square().mean()
        torch.autograd.backward(trainer.scaler.scale(loss))
        trainer.scaler.step(trainer.optimizer)

    with record() as run:
        once()
        Trainer().step()
    assert [finding.code for finding in run.findings] == ["AMP206"]


def test_a_recording_is_not_kept_by_what_it_has_seen() -> None:
    trainer = Trainer()
    with record() as run:
        trainer.step()
    seen = weakref.ref(run._recorder)
    del run
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("saved", [True, False])
def test_a_scaler_may_be_saved_in_a_file_of_its_own(saved: bool) -> None:
    trainer = Trainer()
    with record() as run:
        trainer.step()
        torch.save(trainer.optimizer.state_dict(), io.BytesIO())
        if saved:
            torch.save(trainer.scaler.state_dict(), io.BytesIO())
    assert [finding.code for finding in run.findings] == ([] if saved else ["AMP401"])


@pytest.mark.parametrize("depth", [0, 10, 100])
def test_a_mistake_stands_on_its_line_however_deep_the_calls(depth: int) -> None:
    trainer = Trainer()

    def below(levels: int) -> None:
        if levels:
            below(levels - 1)
        else:
            trainer.step(clip=True)

    with record() as run:
        below(depth)
    (finding,) = run.findings
    assert "clip_grad_norm_" in linecache.getline(finding.filename, finding.line)


def test_a_mistake_in_a_library_stands_where_the_program_calls_it(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "trainer"
    folder.mkdir(parents=True)
    source = "def fit(trainer):\n    trainer.step(clip=True)\n\n\ndef clip(f, *given):\n    f(*given)\n"
    names: dict[str, Any] = {}
    exec(compile(source, str(folder / "loop.py"), "exec"), names)  # noqa: S102 - a library of our own making
    trainer = Trainer()
    with record() as run:
        trainer.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = trainer.model(torch.ones(8, 4)).square().mean()
        torch.autograd.backward(trainer.scaler.scale(loss))
        names["clip"](torch.nn.utils.clip_grad_norm_, trainer.model.parameters(), 1.0)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
    (finding,) = run.findings
    assert finding.filename == __file__
    assert 'names["clip"](torch.nn.utils.clip_grad_norm_' in linecache.getline(__file__, finding.line)


def test_gradients_that_two_optimizers_hold_are_clipped_for_both() -> None:
    optimizers: Any = torch.optim

    class Wrapper(optimizers.Optimizer):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            self.__dict__.update(inner.__dict__)
            self.inner = inner

        def step(self, closure: Any = None) -> Any:
            return self.inner.step()

    trainer = Trainer()
    wrapper = Wrapper(trainer.optimizer)
    with record() as run:
        for _ in range(3):
            wrapper.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = trainer.model(torch.ones(8, 4)).square().mean()
            torch.autograd.backward(trainer.scaler.scale(loss))
            torch.nn.utils.clip_grad_value_((p for p in trainer.model.parameters()), 1.0)
            trainer.scaler.step(wrapper)
            trainer.scaler.update()
    assert [finding.code for finding in run.findings] == ["AMP201"]


def test_a_file_below_the_working_folder_is_named_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    with record() as run:
        trainer.step(clip=True)
    here = Path(__file__)
    (line,) = {finding.line for finding in run.findings}
    monkeypatch.chdir(here.parents[1])
    with pytest.raises(
        AssertionError, match=rf"\n{re.escape(str(Path('runtime', here.name)))}:{line}: AMP201 "
    ) as caught:
        run.assert_no_findings()
    assert str(here.parent) not in str(caught.value)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=rf"\n{re.escape(str(here))}:{line}: AMP201 "):
        run.assert_no_findings()


def test_an_error_at_the_end_is_kept_from_the_program_too(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    with record() as run:
        trainer.step()

        def breaks(**how: bool) -> None:
            raise RuntimeError("a bug of ours")

        monkeypatch.setattr(run._recorder.recording.run_checker, "close", breaks)
    with pytest.raises(AssertionError, match=r"The recorder failed .*a bug of ours"):
        run.assert_no_findings()


def test_a_part_that_cannot_begin_leaves_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.amp.GradScaler.step, torch.Tensor.mul_
    context = record(dtypes=True)

    def breaks() -> None:
        raise RuntimeError("no hooks today")

    monkeypatch.setattr(context.run.dtypes, "start", breaks)
    with pytest.raises(RuntimeError, match="no hooks today"):
        context.__enter__()
    assert (torch.amp.GradScaler.step, torch.Tensor.mul_) == before


def test_a_model_has_to_be_one() -> None:
    not_a_model: Any = "model"
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, not str"):
        record(not_a_model)


def test_an_error_of_the_recorder_is_kept_from_the_program_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    with record() as run:
        trainer.step()

        def breaks() -> None:
            raise RuntimeError("a bug of ours")

        monkeypatch.setattr(run._recorder.recording.sites, "current_site", breaks)
        trainer.step()
    assert isinstance(run.failure, RuntimeError)
    with pytest.raises(AssertionError, match=r"The recorder failed .*a bug of ours"):
        run.assert_no_findings()


def test_methods_of_a_scaler_that_were_bound_before_are_seen() -> None:
    trainer = Trainer()
    scale, unscale, step, update = (getattr(trainer.scaler, name) for name in ("scale", "unscale_", "step", "update"))
    kept = torch.amp.GradScaler.step, torch.amp.GradScaler.step.__code__
    signature = inspect.signature(torch.amp.GradScaler.step)

    def train(*, unscaled: bool) -> None:
        for _ in range(3):
            trainer.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = trainer.model(torch.ones(8, 4)).square().mean()
            scale(loss).backward()
            if unscaled:
                unscale(trainer.optimizer)
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)  # AMP201, where it is scaled
            step(trainer.optimizer)
            update()

    with record() as right:
        assert inspect.signature(torch.amp.GradScaler.step) == signature
        train(unscaled=True)
    with record() as wrong:
        train(unscaled=False)
    assert (torch.amp.GradScaler.step, torch.amp.GradScaler.step.__code__) == kept
    assert right.failure is None and wrong.failure is None
    assert (right.findings, [step.scale_after for step in right.steps]) == ([], [2.0**10] * 3)
    assert [finding.code for finding in wrong.findings] == ["AMP201"]


def test_tasks_that_alternate_record_what_they_train_themselves() -> None:
    async def train(*, clip: bool) -> Run:
        trainer = Trainer()
        with record() as run:
            for _ in range(3):
                await asyncio.sleep(0)
                trainer.step(clip=clip)
            # A task started inside is part of the recording.
            await asyncio.gather(part(trainer))
        return run

    async def part(trainer: Trainer) -> None:
        await asyncio.sleep(0)
        trainer.step()

    async def both() -> tuple[Run, Run]:
        return await asyncio.gather(train(clip=False), train(clip=True))

    with record() as around:
        right, wrong = asyncio.run(both())
    assert [finding.code for finding in right.findings] == []
    assert [finding.code for finding in wrong.findings] == ["AMP201"]
    assert [run.steps_total for run in (right, wrong, around)] == [4, 4, 8]


def test_a_run_shows_itself() -> None:
    assert repr(recorded([])) == "<Run: no step, no findings>"
    assert repr(recorded([False, True])) == "<Run: 2 steps, 1 skipped, loss scale 1024 to 512, no findings>"
    trainer = Trainer()
    with record() as run:
        trainer.step(clip=True)
    assert repr(run) == "<Run: 1 step, 0 skipped, loss scale 1024, findings: AMP201>"
    (finding,) = run.findings
    shown = run._repr_html_()
    assert f"test_run.py:{finding.site.line}</td>" in shown and "<td>AMP201</td><td>error</td>" in shown
    finding.message = "a < b"
    assert "a &lt; b</td>" in run._repr_html_()


def test_the_traceback_of_a_step_has_no_frames_of_this_package() -> None:
    def refuse(batch: Any) -> None:
        raise ValueError(batch)

    with pytest.raises(ValueError, match="first") as caught:
        run_steps(refuse, ["first"], state=[torch.nn.Linear(1, 1)])
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames if frame.filename == __file__] == [
        "test_the_traceback_of_a_step_has_no_frames_of_this_package",
        "refuse",
    ]
    assert "replay.py" not in {Path(frame.filename).name for frame in frames}
