"""Pretrained models that a Trainer trains, in a dtype that the call does not spell out (AMP501)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths
from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from transformers import AutoModel, Trainer, TrainingArguments
from trl import DPOTrainer, SFTConfig, SFTTrainer
"""
BODY = """
def main(cfg, data):
    {before}
    model = AutoModel.from_pretrained(cfg.name, {given})
    trainer = {trainer}(model=model, args=TrainingArguments(output_dir="out"), train_dataset=data{more})
    trainer.train()
"""


def found(before: str, given: str, trainer: str = "Trainer", more: str = "", head: str = "") -> list[tuple[str, bool]]:
    """Return the findings of a program by their dtype, each with its certainty."""
    source = HEAD + head + BODY.format(before=before, given=given, trainer=trainer, more=more)
    findings = check_source(source, "train.py")
    assert all(finding.code == "AMP501" for finding in findings)
    return [(str(finding.names["dtype"]), finding.certain) for finding in findings]


@pytest.mark.parametrize(
    ("before", "given", "expected"),
    [
        ("dtype = torch.float16", "torch_dtype=dtype", [("float16", True)]),
        ("dtype = torch.bfloat16", "dtype=dtype", [("bfloat16", True)]),
        ("dtype = torch.float16 if cfg.fp16 else torch.float32", "torch_dtype=dtype", [("float16", False)]),
        (
            "dtype = torch.float32\n    if cfg.precision == 'bf16':\n        dtype = torch.bfloat16",
            "torch_dtype=dtype",
            [("bfloat16", False)],
        ),
        ("dtypes = {'half': torch.float16, 'full': torch.float32}", "dtype=dtypes[cfg.dtype]", [("float16", False)]),
        ("given = {'torch_dtype': torch.bfloat16}", "**given", [("bfloat16", True)]),
        ("given = dict(dtype=torch.float16, device_map='auto')", "**given", [("float16", True)]),
        ("given = {}\n    given['torch_dtype'] = torch.bfloat16", "**given", [("bfloat16", True)]),
        ("dtype = torch.float32", "torch_dtype=dtype", []),
        ("dtype = None", "torch_dtype=dtype", []),
        ("given = {'torch_dtype': torch.float32, 'revision': 'float16'}", "**given", []),
        # Quantized weights are frozen.
        ("dtype = torch.bfloat16", "dtype=dtype, load_in_4bit=True", []),
    ],
)
def test_a_dtype_that_a_name_holds(before: str, given: str, expected: list[tuple[str, bool]]) -> None:
    assert found(before, given) == expected


@pytest.mark.parametrize(
    ("trainer", "more", "expected"),
    [
        ("SFTTrainer", "", True),
        ("DPOTrainer", "", True),
        ("OwnTrainer", "", True),
        ("OtherTrainer", "", False),
        # Only the adapters are trained.
        ("SFTTrainer", ", peft_config=cfg.lora", False),
        ("SFTTrainer", ", peft_config=None", True),
    ],
)
def test_whose_trainer_trains_the_model(trainer: str, more: str, expected: bool) -> None:
    head = "class OwnTrainer(Trainer): pass\nclass OtherTrainer: pass\n"
    assert found("dtype = torch.bfloat16", "torch_dtype=dtype", trainer, more, head) == [("bfloat16", True)] * expected


CLASS = """\
class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.dtype = {dtype}

    def load(self):
        return AutoModel.from_pretrained(self.cfg.name, torch_dtype=self.dtype)

    def train(self, data):
        trainer = Trainer(model=self.load(), args=TrainingArguments(output_dir="out"), train_dataset=data)
        trainer.train()
"""


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("torch.bfloat16", [True]),
        ("torch.bfloat16 if cfg.low else torch.float32", [False]),
        ("{'low': torch.bfloat16, 'full': torch.float32}[cfg.dtype]", [False]),
        ("torch.float32", []),
    ],
)
def test_a_dtype_that_an_attribute_holds(dtype: str, expected: list[bool]) -> None:
    findings = check_source(HEAD + CLASS.format(dtype=dtype), "train.py")
    assert [finding.code for finding in findings] == ["AMP501"] * len(expected)
    assert [finding.certain for finding in findings] == expected


LOADER = """\
import torch
from {model_home} import Net
from {trainer_home} import OwnTrainer


def load(name, **kwargs):
    return Net.from_pretrained(name, {passed})


def main(config, data):
    model = load(config["name"], {dtype})
    trainer = OwnTrainer(model=model, args=config["args"], train_dataset=data)
    trainer.train()
"""
OWN_CLASSES = {
    "net.py": "from transformers import PreTrainedModel\n\n\nclass Net(PreTrainedModel):\n    pass\n",
    "loop.py": "import transformers\n\n\nclass OwnTrainer(transformers.{base}):\n    pass\n",
}


@pytest.mark.parametrize(
    ("base", "passed", "dtype", "expected"),
    [
        ("Trainer", "**kwargs", "torch_dtype=torch.float16", True),
        ("Trainer", "attn_implementation='eager', **kwargs", "dtype=torch.bfloat16", True),
        ("Trainer", "**kwargs", "torch_dtype=torch.float32", False),
        ("Trainer", "", "torch_dtype=torch.float16", False),
        ("TrainerCallback", "**kwargs", "torch_dtype=torch.float16", False),
    ],
)
def test_keywords_passed_on_and_a_trainer_of_another_file(
    tmp_path: Path, base: str, passed: str, dtype: str, *, expected: bool
) -> None:
    for name, text in OWN_CLASSES.items():
        (tmp_path / name).write_text(text.format(base=base))
    text = LOADER.format(model_home="net", trainer_home="loop", passed=passed, dtype=dtype)
    (tmp_path / "train.py").write_text(text)
    findings = check_paths([tmp_path]).findings
    assert [(f.code, f.line) for f in findings] == [("AMP501", 7)] * expected
    assert [step.site.line for f in findings for step in f.trace] == [11] * expected
