"""Losses of subclasses of transformers' Trainer that ignore the number of tokens in the accumulation window."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch.nn.functional as F
import transformers
import trl
from transformers import Seq2SeqTrainer, Trainer
from trl import SFTTrainer
from trl.trainer.gkd_trainer import GKDTrainer


class Base(Trainer):
    pass


class Own({base}):
    def compute_loss(self, model, inputs, {parameters}):
        labels = inputs.pop("labels")
        out = model(**inputs)
        {body}
"""
WINDOW = "return_outputs=False, num_items_in_batch=None"
LOSS = "F.cross_entropy(out.logits, labels)"
#: The line of the method: the loss may be computed anywhere in it.
METHOD = 14


def found(base: str = "Trainer", parameters: str = WINDOW, body: str = f"return {LOSS}") -> list[tuple[str, int, str]]:
    text = PROGRAM.format(base=base, parameters=parameters, body=body.replace("\n", "\n        "))
    return [(f.code, f.line, f.message.partition(" ignores")[0]) for f in check_source(text)]


@pytest.mark.parametrize(
    ("body", "loss"),
    [
        (f"return {LOSS}", LOSS),
        (f"return {LOSS}, out", LOSS),
        (f"loss = {LOSS}\nreturn loss", "loss"),
        (f"loss = {LOSS}\nreturn (loss, out) if return_outputs else loss", "loss"),
        (f"loss = {LOSS}\nif return_outputs:\n    return loss, out\nreturn loss", "loss"),
        ("loss = out.loss\nreturn loss if not return_outputs else (loss, out)", "loss"),
    ],
)
def test_the_loss_is_named_at_the_method(body: str, loss: str) -> None:
    assert found(body=body) == [("AMP301", METHOD, f"`{loss}`")]


@pytest.mark.parametrize("base", ["Trainer", "transformers.Trainer", "Seq2SeqTrainer", "Base", "Mixin, Trainer"])
def test_a_trainer_of_transformers(base: str) -> None:
    assert found(base) == [("AMP301", METHOD, f"`{LOSS}`")]


@pytest.mark.parametrize("base", ["SFTTrainer", "trl.SFTTrainer", "GKDTrainer", "trl.PRMTrainer"])
def test_a_trainer_of_trl_that_leaves_the_division_to_the_model(base: str) -> None:
    assert found(base) == [("AMP301", METHOD, f"`{LOSS}`")]


@pytest.mark.parametrize("base", ["trl.DPOTrainer", "trl.GRPOTrainer", "trl.RewardTrainer", "trl.KTOTrainer"])
def test_a_trainer_of_trl_that_makes_the_trainer_divide(base: str) -> None:
    assert found(base) == []


@pytest.mark.parametrize("base", ["object", "transformers.TrainerCallback", "trl.Trainer", "OwnTrainer"])
def test_another_base_class(base: str) -> None:
    assert found(base) == []


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("return_outputs=False, *, num_items_in_batch=None", 1),
        ("num_items_in_batch", 1),
        # Keywords take the number as well.
        ("return_outputs=False, **kwargs", 1),
        # The Trainer divides the loss of a method that cannot receive the number.
        ("return_outputs=False", 0),
    ],
)
def test_the_number_of_tokens_is_a_parameter(parameters: str, expected: int) -> None:
    assert len(found(parameters=parameters)) == expected


@pytest.mark.parametrize(
    "body",
    [
        f"loss = {LOSS}\nif num_items_in_batch:\n    loss = loss / num_items_in_batch\nreturn loss",
        "return F.cross_entropy(out.logits, labels, reduction='sum') / num_items_in_batch",
        "return super().compute_loss(model, inputs)",
        "return super().compute_loss(model, inputs) + out.aux",
        f"return {LOSS} / self.args.gradient_accumulation_steps",
        f"self.model_accepts_loss_kwargs = False\nreturn {LOSS}",
        f"self.compute_loss_func = None\nreturn {LOSS}",
        f"{LOSS}\nreturn",
        "pass",
    ],
)
def test_the_loss_may_be_divided(body: str) -> None:
    assert found(body=body) == []


def test_a_class_whose_base_divides() -> None:
    text = PROGRAM.format(base="Base", parameters=WINDOW, body=f"return {LOSS}")
    divides = "    def __init__(self):\n        self.model_accepts_loss_kwargs = False\n"
    assert [finding.code for finding in check_source(text)] == ["AMP301"]
    assert check_source(text.replace("    pass\n", divides, 1)) == []
    assert check_source(f"{text}\n    def training_step(self, model, inputs):\n        return model(inputs)\n") == []


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        ("Own(model, TrainingArguments('out', bf16=True)).train()", 0),
        ("Own(model=model, args=TrainingArguments('out', gradient_accumulation_steps=1)).train()", 0),
        ("args = Seq2SeqTrainingArguments('out')\ntrainer = Own(model=model, args=args)", 0),
        ("Own(model, TrainingArguments('out', gradient_accumulation_steps=8)).train()", 1),
        ("Own(model, TrainingArguments('out', gradient_accumulation_steps=steps)).train()", 1),
        # The number may be among the settings.
        ("Own(model, TrainingArguments(**settings)).train()", 1),
        ("args = parser.parse_args_into_dataclasses()[0]\nOwn(model, args).train()", 1),
        ("args = TrainingArguments('out')\nif long:\n    args = load()\nOwn(model, args).train()", 1),
        # One of two trainers has longer windows.
        ("Own(model, TrainingArguments('a'))\nOwn(model, TrainingArguments('b', gradient_accumulation_steps=2))", 1),
    ],
)
def test_windows_of_one_micro_batch_need_no_division(created: str, expected: int) -> None:
    text = PROGRAM.format(base="Trainer", parameters=WINDOW, body=f"return {LOSS}") + "\n\n" + created + "\n"
    assert [finding.code for finding in check_source(text)].count("AMP301") == expected
