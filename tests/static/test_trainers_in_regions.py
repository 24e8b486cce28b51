"""AMP101: the trainer of a framework that runs the whole training inside an open autocast region."""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

PROGRAMS = {
    "a trainer of transformers": """\
import torch
from transformers import Trainer

def train(model, args, data):
    with torch.autocast("cuda"):
        trainer = Trainer(model=model, args=args, train_dataset=data)
        trainer.train()  # AMP101
""",
    "a trainer that is constructed before": """\
import torch
import trl

def train(model, args, data):
    tuner = trl.SFTTrainer(model=model, args=args, train_dataset=data)
    with torch.amp.autocast("cuda", dtype=torch.bfloat16):
        tuner.train(resume_from_checkpoint=True)  # AMP101
    tuner.save_model()
""",
    "without a name": """\
import torch
from transformers import Seq2SeqTrainer

def train(model, data):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        Seq2SeqTrainer(model=model, train_dataset=data).train()  # AMP101
""",
    "a trainer of Lightning": """\
import lightning as L
import torch

def main(module, data):
    trainer = L.Trainer(max_epochs=3)
    with torch.autocast("cuda", dtype=torch.float16):
        trainer.fit(module, data)  # AMP101
""",
    "behind the region": """\
import torch
from transformers import Trainer

def train(model, args, data):
    with torch.autocast("cuda"):
        trainer = Trainer(model=model, args=args, train_dataset=data)
    trainer.train()
""",
    "in a region of float32": """\
import torch
from transformers import Trainer

def train(model, args, data):
    with torch.autocast("cuda", dtype=torch.float32):  # AMP109
        Trainer(model=model, args=args, train_dataset=data).train()
""",
    "in a region of float64": """\
import torch
from transformers import Trainer

def train(model, args, data):
    with torch.autocast("cuda", dtype=torch.float64):  # AMP109
        Trainer(model=model, args=args, train_dataset=data).train()
""",
    "in a region that is off": """\
import torch
from transformers import Trainer

def train(model, args, data):
    trainer = Trainer(model=model, args=args, train_dataset=data)
    with torch.autocast("cuda", enabled=False):
        trainer.train()
""",
    "an evaluation": """\
import torch
from transformers import Trainer

def test(model, args, data):
    trainer = Trainer(model=model, args=args, eval_dataset=data)
    with torch.autocast("cuda"):
        trainer.evaluate()
""",
    "the mode of a model": """\
import torch
from transformers import AutoModel

def train(name, x):
    model = AutoModel.from_pretrained(name)
    with torch.autocast("cuda"):
        model.train()
        return model(x)
""",
    "a trainer of the project": """\
import torch
from mine import Trainer

def train(model, data):
    trainer = Trainer(model, data)
    with torch.autocast("cuda"):
        trainer.train()
""",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_training_inside_of_a_region(program: str) -> None:
    findings = [each for each in check_source(program, "train.py") if each.code != "AMP901"]
    assert places(findings) == marks(program), shown(findings)
    assert not any(finding.certain for finding in findings)
