"""Low weights of models whose makers and parameter groups the analyzer does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

PROGRAM = """\
import torch
from torch import nn
from models import Net, build, registry

{before}

def main(args, loader):
    {made}
    optimizer = {optimizer}
    for x, y in loader:
        loss = model(x, y).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
ADAM = "torch.optim.AdamW(model.parameters(), lr=args.lr)"
#: Statements that make the model, with the dtype to fill in.
MADE = {
    "a function": "model = build(args).to(torch.{})",
    "a function, moved before": "model = build(args).to('cuda').to(dtype=torch.{})",
    "a function, moved afterwards": "model = build(args).to(torch.{}).cuda()",
    "an entry of a registry": "model = registry[args.model](args.width).to(torch.{})",
    "a method of a registry": "model = registry.get(args.model)(args).to('cuda', torch.{})",
    "getattr": "model = getattr(registry, args.model)(args).to(torch.{})",
    "a variable before": "net = build(args).to(torch.{})\n    model = net",
    "a cast in place before": "net = build(args)\n    net.to(torch.{})\n    model = net",
    "another class under a default dtype": "torch.set_default_dtype(torch.{})\n    model = Net(args)",
    "a configuration": "model = registry.Model.from_config(args, torch_dtype=torch.{})",
}
#: Functions that group the parameters of a model.
GROUPS = {
    "a choice of a list": """
    decay, rest = [], []
    for name, p in model.named_parameters():
        (decay if p.ndim > 1 else rest).append(p)
    return [{"params": decay}, {"params": rest, "weight_decay": 0.0}]
""",
    "a dict of lists": """
    groups = {}
    for name, p in model.named_parameters():
        groups.setdefault(p.ndim, []).append(p)
    return [{"params": each} for each in groups.values()]
""",
    "sets of names": """
    decay = set()
    for name, part in model.named_modules():
        decay.update(f"{name}.{each}" for each, _ in part.named_parameters(recurse=False))
    parameters = dict(model.named_parameters())
    return [parameters[name] for name in sorted(decay)]
""",
}


def codes(text: str) -> list[str]:
    return [finding.code for finding in check_source(text, "run.py")]


def program(*, before: str = "", made: str, optimizer: str = ADAM) -> str:
    return PROGRAM.format(before=before, made=made, optimizer=optimizer)


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_low_model_that_an_unknown_maker_returns(made: str) -> None:
    assert codes(program(made=made.format("bfloat16"))) == ["AMP501"]
    assert codes(program(made=made.format("float32"))) == []


def test_a_cast_of_what_is_no_model() -> None:
    made = "model = build(args)\n    images = build(args.images).to(torch.bfloat16)"
    assert codes(program(made=made)) == []


def test_a_cast_by_a_setting_is_possible() -> None:
    before = """
def make(args):
    net = build(args)
    if args.half:
        net = net.half()
    return net
"""
    [finding] = check_source(program(before=before, made="model = make(args)"), "run.py")
    assert (finding.code, finding.certain, finding.condition) == ("AMP501", False, "when `args.half` is true")


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("through", ["", "variable"])
def test_parameters_that_a_function_groups(groups: str, through: str) -> None:
    before, made = f"def group(model, decay):{groups}", "model = build(args).to(torch.{})"
    optimizer = "torch.optim.AdamW(group(model, 0.1), lr=args.lr)"
    if through:
        made, optimizer = f"{made}\n    parts = group(model, 0.1)", "torch.optim.AdamW(params=parts, lr=args.lr)"
    assert codes(program(before=before, made=made.format("bfloat16"), optimizer=optimizer)) == ["AMP501"]
    assert codes(program(before=before, made=made.format("float32"), optimizer=optimizer)) == []


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ("{k: v.to(torch.bfloat16) for k, v in args.state.items()}", ", assign=True", ["AMP501"]),
        ("{k: v.half() for k, v in args.state.items()}", ", strict=False, assign=True", ["AMP501"]),
        ("{k: v.half() for k, v in args.state.items()}", ", assign=False", []),
        ("{k: v.half() for k, v in args.state.items()}", "", []),
        ("{k: v.float() for k, v in args.state.items()}", ", assign=True", []),
        ("args.state", ", assign=True", []),
    ],
)
@pytest.mark.parametrize("made", ["build(args)", "nn.Linear(8, 8)"])
def test_a_state_whose_tensors_become_the_parameters(state: str, options: str, expected: list[str], made: str) -> None:
    load = f"model = {made}\n    state = {state}\n    model.load_state_dict(state{options})"
    assert codes(program(made=load, optimizer=ADAM)) == expected
    assert codes(program(made=load.replace("(state, ", f"({state}, "), optimizer=ADAM)) == expected


#: Float32 copies of the weights, which the optimizer trains in place of them.
COPIES = {
    "a list": "copies = [p.detach().clone().float().requires_grad_() for p in model.parameters()]",
    "parameters": "copies = [nn.Parameter(p.detach().float()) for _, p in model.named_parameters()]",
    "a loop": "copies = []\n    for p in model.parameters():\n        copies.append(p.data.to(torch.float32))",
    "a function": "copies = copy_weights(model)",
    "a name": "copies = make_master_weights(model)",
    "one tensor": "copies = [torch.cat([p.detach().float().flatten() for p in model.parameters()]).requires_grad_()]",
}
COPY_WEIGHTS = """
def copy_weights(model):
    return [torch.nn.Parameter(p.detach().float()) for p in model.parameters()]
"""


@pytest.mark.parametrize("copies", COPIES.values(), ids=COPIES)
def test_an_optimizer_of_float32_copies(copies: str) -> None:
    made = f"model = build(args).to(torch.bfloat16)\n    {copies}"
    optimizer = "torch.optim.AdamW(copies, lr=args.lr)"
    assert codes(program(before=COPY_WEIGHTS, made=made, optimizer=optimizer)) == []
    own = optimizer.replace("copies", "model.parameters()")
    assert codes(program(before=COPY_WEIGHTS, made=made, optimizer=own)) == ["AMP501"]


def test_a_function_that_groups_the_parameters_of_one_of_two_models() -> None:
    made = "teacher = build(args).to(torch.bfloat16)\n    model = build(args.student)\n"
    made += "    parts = [*teacher.parameters(), *model.parameters()]"
    groups = "torch.optim.AdamW(choose(model, teacher), lr=args.lr)"
    assert codes(program(before="from models import choose", made=made, optimizer=groups)) == []


def test_an_optimizer_that_the_model_makes() -> None:
    optimizer = "model.configure_optimizers(args.decay, args.lr)"
    made = "model = build(args)\n    model.to(torch.{})"
    [finding] = check_source(program(made=made.format("bfloat16"), optimizer=optimizer), "run.py")
    assert (finding.code, finding.site.line, finding.certain) == ("AMP501", 9, False)
    assert codes(program(made=made.format("float32"), optimizer=optimizer)) == []


TRAINER = """\
import torch
from models import build

class Trainer:
    def setup(self, cfg):
        self.model = self.build_model(cfg)
        self.optimizer = self.build_optimizer(cfg)

    def build_model(self, cfg):
        model = build(cfg)
        return model.to(device="cuda", dtype={dtype})

    def build_optimizer(self, cfg):
        return torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)

    def train(self, loader):
        for x, y in loader:
            loss = self.model(x, y).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""


def test_a_model_that_methods_make() -> None:
    assert codes(TRAINER.format(dtype="torch.bfloat16")) == ["AMP501"]
    assert codes(TRAINER.format(dtype="torch.float32")) == []


CHOICE = """\
import torch
from transformers import AutoConfig, AutoModelForCausalLM

def make(args, resume=None):
    if resume is not None:
        return AutoModelForCausalLM.from_pretrained(resume, torch_dtype={dtype})
    config = AutoConfig.from_pretrained(args.base)
    config.num_hidden_layers = args.layers
    config.use_cache = False
    return AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)

def main(args, loader):
    model = make(args, args.resume)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for x, y in loader:
        loss = model(x, y).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("dtype", "expected"), [("torch.bfloat16", ["AMP501"]), ('"auto"', ["AMP501"]), ("torch.float32", [])]
)
def test_one_of_two_models_is_low(dtype: str, expected: list[str]) -> None:
    assert codes(CHOICE.format(dtype=dtype)) == expected


SHARDED = {
    "train.py": """\
import torch
from build import make_optimizer
from models import build
from parallel import shard

class Experiment:
    def setup(self):
        model = build("vit").cuda()
        {order}

    def run(self, loader):
        for x, y in loader:
            loss = self.model(x).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
""",
    "build.py": """\
import torch

def make_optimizer(model, decay):
    groups = {}
    for name, p in model.named_parameters():
        key = 0.0 if p.ndim < 2 else decay
        if key not in groups:
            groups[key] = {"params": [], "weight_decay": key}
        groups[key]["params"].append(p)
    return torch.optim.AdamW(list(groups.values()))
""",
    "parallel.py": """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

def shard(model):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model
""",
}
EARLY = "self.optimizer = make_optimizer(model, 0.1)\n        self.model = shard(model)"
LATE = "self.model = shard(model)\n        self.optimizer = make_optimizer(self.model, 0.1)"


@pytest.mark.parametrize(("order", "expected"), [(EARLY, ["AMP608"]), (LATE, [])])
def test_an_optimizer_of_grouped_parameters_before_sharding(tmp_path: Path, order: str, expected: list[str]) -> None:
    for name, text in SHARDED.items():
        (tmp_path / name).write_text(text.replace("{order}", order))
    assert [each.code for each in check_paths([str(tmp_path)]).findings] == expected


ENGINE = """\
import torch
from dataclasses import dataclass
from transformers import AutoModelForCausalLM

@dataclass
class Config:
    path: str = ""
    dtype: str = "{default}"

class Engine:
    def __init__(self, config: Config):
        self.config = config
        self.dtype = getattr(torch, config.dtype)

    def make_model(self):
        model = AutoModelForCausalLM.from_pretrained(self.config.path, torch_dtype={dtype})
        self.model = model.to("cuda")

    def make_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def initialize(self):
        self.make_model()
        self.make_optimizer()

    def train(self, batches):
        for batch in batches:
            self.model(**batch).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""


@pytest.mark.parametrize("dtype", ["self.dtype", "getattr(torch, self.config.dtype)", "torch.{default}"])
def test_methods_that_a_method_calls_make_the_model(dtype: str) -> None:
    for default, expected in (("bfloat16", ["AMP501"]), ("float32", [])):
        assert codes(ENGINE.format(default=default, dtype=dtype.format(default=default))) == expected


PARTS = {
    "wrapper.py": """\
import torch
from torch import nn
from models import build

class Wrapper(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.net = build(config.name){cast}
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.net(x).float())
""",
    "train.py": """\
import torch
from wrapper import Wrapper

def main(config, loader):
    model = Wrapper(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    for x in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}
SUBCLASS = {
    "base.py": """\
import torch

class Trainer:
    def __init__(self, config):
        self.config = config
        self.model = self.build_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)

    def build_model(self):
        raise NotImplementedError

    def train_step(self, x):
        self.model(x).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
""",
    "mine.py": """\
import torch
from base import Trainer
from models import build

class Mine(Trainer):
    def build_model(self):
        return build(self.config.name)(self.config){cast}
""",
}
OPTIMIZER_ELSEWHERE = {
    "optimizers.py": """\
import torch

def make_optimizer(model, config):
    decay, rest = [], []
    for name, p in model.named_parameters():
        if p.ndim == 1 or name.endswith(".bias"):
            rest.append(p)
        else:
            decay.append(p)
    groups = [{{"params": rest, "weight_decay": 0.0}}, {{"params": decay}}]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr)
    return torch.optim.AdamW(groups, lr=config.lr)
""",
    "train.py": """\
import torch
from models import build
from optimizers import make_optimizer

def main(config, loader):
    model = build(config.name)(config){cast}
    optimizer = make_optimizer(model, config)
    for x in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("files", [PARTS, SUBCLASS, OPTIMIZER_ELSEWHERE], ids=["a part", "a subclass", "an optimizer"])
@pytest.mark.parametrize(("cast", "expected"), [(".to(torch.bfloat16)", ["AMP501"]), (".to('cuda')", [])])
def test_models_in_several_files(tmp_path: Path, files: dict[str, str], cast: str, expected: list[str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text.format(cast=cast))
    assert [each.code for each in check_paths([str(tmp_path)]).findings] == expected


ADAPTERS = """\
import torch
from accelerate import Accelerator
from diffusers import UNet2DConditionModel
from diffusers.training_utils import cast_training_params
from peft import LoraConfig

def main(args, loader):
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    unet = UNet2DConditionModel.from_pretrained(args.path)
    unet.requires_grad_(False)
    dtype = torch.float32
    if accelerator.mixed_precision == "fp16":
        dtype = torch.float16
    elif accelerator.mixed_precision == "bf16":
        dtype = torch.bfloat16
    {first}
    {second}
    {after}
    optimizer = torch.optim.AdamW([p for p in unet.parameters() if p.requires_grad], lr=1e-4)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)
    for x in loader:
        accelerator.backward(unet(x).mean())
        optimizer.step()
        optimizer.zero_grad()
"""
CAST, ADD = "unet.to(accelerator.device, dtype=dtype)", "unet.add_adapter(LoraConfig(r=4))"


@pytest.mark.parametrize(("first", "second"), [(CAST, ADD), (ADD, CAST)])
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("pass", ["AMP501"]),
        ("cast_training_params(unet, dtype=torch.float32)", []),
        ("if args.mixed_precision == 'fp16':\n        cast_training_params([unet])", []),
        ("for p in unet.parameters():\n        if p.requires_grad:\n            p.data = p.data.to(torch.float32)", []),
        ("for p in unet.parameters():\n        p.data = p.data.float()", []),
    ],
    ids=["low", "cast back", "cast back by a setting", "by a loop", "all by a loop"],
)
def test_adapters_of_a_model_in_float16(first: str, second: str, after: str, expected: list[str]) -> None:
    text = ADAPTERS.format(first=first, second=second, after=after)
    assert codes(text) == expected
    assert codes(text.replace("torch.float16", "torch.float32")) == []
