"""Scaled losses whose whole computation ran outside autocast (AMP110), and correct programs."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from pytest_amp_check import check_paths, check_source

TRAIN = """\
import torch
import tools
{imports}

def train(model, criterion, optimizer, loader, args):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
{forward}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
{after}
"""
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), 0.1)"
OUTSIDE = "loss = criterion(model(x), y)"
EVALUATE = """
def evaluate(model, loader):
    with torch.no_grad(), torch.autocast("cuda"):
        return [model(x) for x, _ in loader]
"""
ENTERS = """
class Net(torch.nn.Module):
    def forward(self, x):
        with torch.autocast("cuda"):
            return self.body(x)
"""


def program(forward: str, after: str = "", imports: str = "") -> str:
    return TRAIN.format(forward=indent(forward, " " * 8), after=after, imports=imports)


def found(source: str) -> list[tuple[str, bool]]:
    return [(f.severity, f.certain) for f in check_source(source, "train.py") if f.code == "AMP110"]


def found_among(tmp_path: Path, **files: str) -> set[str]:
    for name, source in files.items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    return {Path(f.filename).name for f in check_paths([str(tmp_path)]).findings if f.code == "AMP110"}


@pytest.mark.parametrize(
    "forward",
    [
        OUTSIDE,
        "features = model(x)\nlogits, labels = features.head(y)\nloss = criterion(logits, labels)",
        "losses = criterion(model(x), y)\nloss = sum(losses[k] * args.weights[k] for k in losses)",
        "loss = torch.nn.functional.cross_entropy(model(x)['logits'], y)",
        "loss = model(x, y)\nif args.world_size > 1:\n    loss = loss.mean()",
        "loss = criterion(model(x), y) / args.steps",
        "with torch.autocast('cuda', enabled=False):\n    loss = criterion(model(x), y)",
        "if args.mixup:\n    loss = args.mix(criterion, model(x), y)\nelse:\n    loss = criterion(model(x), y)",
        "with torch.autocast('cuda'):\n    args.log(x)\nloss = criterion(model(x), y)",
        "with torch.profiler.record_function('step'):\n    loss = criterion(model(x), y)",
        "with tools.Timer('step'):\n    loss = criterion(model(x), y)",
    ],
)
@pytest.mark.parametrize("after", ["", EVALUATE])
def test_a_loss_that_nothing_under_autocast_made(forward: str, after: str) -> None:
    """Unanalyzed code is assumed to enter no autocast without evidence, so the finding is never definite."""
    assert found(program(forward, after)) == [("info", False)]


FILLED = """\
import torch

class Criterion:
    def __call__(self, out, y):
        parts = torch.zeros(2)
        parts[0] = torch.nn.functional.mse_loss(out, y)
        parts[1] += out.abs().mean()
        return parts.sum()

class Soft(torch.nn.Module):
    def forward(self, out):
        with torch.autocast("cuda", enabled=False):
            return out.float().square()
"""


def test_a_tensor_that_is_filled_by_its_elements_comes_from_their_forward(tmp_path: Path) -> None:
    outside = "criterion = losses.Criterion()\nloss = criterion(model(x), y)"
    inside = "criterion = losses.Criterion()\nwith torch.autocast('cuda'):\n    loss = criterion(model(x), y)"
    train = program(outside, imports="import losses")
    assert found_among(tmp_path, train=train, losses=FILLED) == {"train.py"}
    assert found_among(tmp_path, train=program(inside, imports="import losses"), losses=FILLED) == set()


@pytest.mark.parametrize(
    "forward",
    [
        "with torch.autocast('cuda'):\n    loss = criterion(model(x), y)",
        "with torch.autocast('cuda', enabled=args.amp):\n    out = model(x)\nloss = criterion(out, y)",
        "if args.amp:\n    with torch.autocast('cuda'):\n        loss = criterion(model(x), y)\nelse:\n    " + OUTSIDE,
        "with args.context():\n    loss = criterion(model(x), y)",
        "with tools.amp_context():\n    loss = criterion(model(x), y)",
        "with tools.MixedPrecision():\n    loss = criterion(model(x), y)",
        "loss = args.loss",
        "loss = args.losses['total'].mean()",
        "x = x.to(args.device)\nwith torch.autocast('cuda'):\n    loss = model(x, y)\nloss = loss / args.steps",
        "outputs = {'x': args.prepare(x, y)}\nargs.run(outputs)\nloss = outputs[args.key]",
        "scaler.step = None\nloss = model(x)",
    ],
)
def test_a_loss_that_autocast_made_or_may_have_made(forward: str) -> None:
    expected = [("info", False)] if forward.startswith("scaler.step") else []
    assert found(program(forward)) == expected


LOSS_ALONE = """\
out = model(x)
with torch.autocast("cuda"):
    loss = {loss}"""
FOCAL = """
class Focal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma, self.least = max(2.0, 1), torch.tensor(0.1)
        self.cross = torch.nn.CrossEntropyLoss()

    def forward(self, out, y):
        return torch.nn.functional.cross_entropy(out * self.gamma, y)
"""
HEAD_AND_LOSS = """
class Focal(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 8)

    def forward(self, out, y):
        return torch.nn.functional.cross_entropy(self.head(out), y)
"""


@pytest.mark.parametrize(
    ("loss", "after"),
    [
        ("torch.nn.functional.cross_entropy(out, y)", ""),
        ("torch.nn.CrossEntropyLoss()(out, y)", ""),
        ("criterion(out, y)", ""),
        ("args.loss_fn(out, y)", ""),
        ("Focal()(out, y)", FOCAL),
        ("criterion(out, y) / args.steps", ""),
        ("torch.nn.functional.mse_loss(out['rgb'], y)", ""),
    ],
)
def test_a_region_around_the_loss_alone(loss: str, after: str) -> None:
    assert found(program(LOSS_ALONE.format(loss=loss), after)) == [("info", False)]
    assert found(program(LOSS_ALONE.format(loss=loss), after + ENTERS)) == []
    inside = 'with torch.autocast("cuda"):\n    out = model(x)\n    loss = ' + loss
    assert found(program(inside, after)) == []


@pytest.mark.parametrize(
    ("loss", "after"),
    [
        # What ran before the region may have prepared the inputs.
        ("model.head(out, y)", ""),
        ("criterion(model.head(out), y)", ""),
        ("torch.nn.functional.cross_entropy(model.head(out), y)", ""),
        ("compute_loss(out, y)", ""),
        ("Focal()(out, y)", HEAD_AND_LOSS),
        ("Focal()(out, y)", HEAD_AND_LOSS.replace("torch.nn.Linear(8, 8)", "tools.make_head(8)")),
    ],
)
def test_a_region_around_more_than_the_loss(loss: str, after: str) -> None:
    assert found(program(LOSS_ALONE.format(loss=loss), after)) == []


def test_a_model_of_a_class_that_enters_autocast() -> None:
    """The model may be of that class, unless another object is known to be of the class."""
    assert found(program(OUTSIDE, ENTERS)) == []
    known = ENTERS + "\nteacher = Net()\n"
    assert found(program(OUTSIDE, known)) == [("info", False)]
    off = ENTERS.replace('"cuda"', '"cuda", enabled=False')
    assert found(program(OUTSIDE, off)) == [("info", False)]
    asks = ENTERS.replace('with torch.autocast("cuda"):', "if torch.is_autocast_enabled():")
    assert found(program(OUTSIDE, asks)) == [("info", False)]


@pytest.mark.parametrize(
    ("before", "after", "finds"),
    [
        # Code without gradients computes no loss.
        ("    def forward", "    @torch.no_grad()\n    def forward", True),
        ("    def forward", "    @smart_inference_mode()\n    def forward", True),
        ('        with torch.autocast("cuda"):', '        with torch.no_grad(), torch.autocast("cuda"):', True),
        # A region entered in a Function is left before other code of the model runs.
        ("    def forward(self", "    @staticmethod\n    def forward(self", True),
        ("    def forward", "    @tools.timed\n    def forward", False),
        ('        with torch.autocast("cuda"):', "        with autocast(enabled=False):", True),
        ('        with torch.autocast("cuda"):', "        with autocast(enabled=self.on):", False),
        ('        with torch.autocast("cuda"):', "        with region(enabled=self.on):", False),
    ],
)
def test_which_forwards_enter_autocast_for_a_loss(before: str, after: str, finds: bool) -> None:
    net = "from torch.cuda.amp import autocast\nfrom torch.cuda.amp import autocast as region\n" + ENTERS
    assert found(program(OUTSIDE, net.replace(before, after))) == ([("info", False)] if finds else [])


@pytest.mark.parametrize(
    ("cast", "finds"),
    [
        ("tools.test(tools.load(args.best).half())", True),
        ("state = {k: v.half() for k, v in args.state.items()}", True),
        ("batch.images = batch.images.half()", True),
        ("torch.save(copy.deepcopy(model.module if args.ddp else model).half(), 'm.pt')", True),
        ("model.half().float()", True),
        ("model.half()", False),
        ("model = tools.load(args.best).half()", False),
        ("other = tools.load(args.best).half()", True),
        ("args.model.half()", False),
        ("tools.wrap(args).model.half()", False),
    ],
)
def test_what_is_cast_by_hand_is_the_model_or_another_object(cast: str, finds: bool) -> None:
    source = program(OUTSIDE, imports="import copy\nfrom tools import batch")
    source = source.replace("    scaler = ", f"    {OPTIMIZER}\n    {cast}\n    scaler = ")
    assert bool(found(source)) == finds


def test_what_is_cast_back_at_once_is_not_trained_in_float16() -> None:
    source = program(OUTSIDE).replace("    scaler = ", f"    {OPTIMIZER}\n    model.half()\n    scaler = ")
    assert "AMP501" in {f.code for f in check_source(source)}
    assert "AMP501" not in {f.code for f in check_source(source.replace("half()", "half().float()"))}


@pytest.mark.parametrize(("parameter", "finds"), [("net", False), ("loader", True)])
def test_what_other_code_casts_that_was_given_it_may_be_the_model(parameter: str, finds: bool) -> None:
    casts = {"net": "    net.half()", "loader": "    for batch in loader:\n        batch.images.half()"}[parameter]
    source = program(OUTSIDE, after=f"def prepare({parameter}):\n{casts}\n    scaler = torch.amp.GradScaler()\n")
    source = source.replace("    scaler = ", f"    {OPTIMIZER}\n    scaler = ", 1)
    assert bool(found(source)) == finds


def test_a_function_that_enters_autocast_under_the_name_that_is_called() -> None:
    source = """
class Trainer:
    def compute(self, x, y):
        with torch.autocast("cuda"):
            return self.model(x, y)
"""
    assert found(program("loss = args.trainer.compute(x, y)", source)) == []
    assert found(program("loss = args.trainer.other(x, y)", source)) == [("info", False)]
    through = (
        source.replace("def compute", "def enter") + "    def compute(self, x, y):\n        return self.enter(x, y)\n"
    )
    assert found(program("loss = args.trainer.compute(x, y)", through)) == []


def test_a_context_manager_that_enters_autocast_on_one_way() -> None:
    source = """
@contextlib.contextmanager
def maybe(enabled):
    if enabled:
        with torch.autocast("cuda"):
            yield
    else:
        yield
"""
    inside = "with maybe(args.amp):\n    loss = model(x, y)"
    assert found(program(inside, source, "import contextlib")) == []
    assert found(program("with maybe(args.amp):\n    pass\nloss = model(x, y)", source, "import contextlib"))


LAYER = """
class Linear(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight{cast})

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Linear(2, 2)

    def forward(self, x):
        return self.body(x.to(args.dtype))
"""


@pytest.mark.parametrize(("cast", "finds"), [(".to(dtype=x.dtype)", False), (".type_as(x)", False), ("", True)])
def test_layers_that_cast_their_own_weights_are_mixed_precision_by_hand(cast: str, finds: bool) -> None:
    layer = LAYER.format(cast=cast)
    assert bool(found(program(OUTSIDE, layer))) is finds
    assert bool(found(program(OUTSIDE, layer + "\nmodel = Net()\n"))) is finds


def test_a_layer_that_casts_its_weight_for_torchscript_alone_is_not() -> None:
    plain = "        return torch.nn.functional.linear(x, self.weight)\n"
    scripted = "        if torch.jit.is_scripting():\n    " + plain.replace("weight", "weight.to(x.dtype)") + plain
    assert found(program(OUTSIDE, LAYER.format(cast="").replace(plain, scripted))) == [("info", False)]


def test_a_model_that_is_made_while_float16_is_the_default(tmp_path: Path) -> None:
    models = """
import torch

def build():
    torch.set_default_tensor_type(torch.{kind})
    model = torch.nn.Linear(2, 2)
    torch.set_default_tensor_type(torch.FloatTensor)
    return model
"""
    main = "import models\nimport train\n\ntrain.train(models.build(), None, None, [], None)\n"
    for kind, files in (("cuda.HalfTensor", set()), ("cuda.FloatTensor", {"train.py"})):
        assert found_among(tmp_path, models=models.format(kind=kind), main=main, train=program(OUTSIDE)) == files


def test_what_comes_out_of_a_dict_may_have_been_in_the_region_of_who_filled_it() -> None:
    helpers = """
def chunks(model, x):
    found = {}
    for i in range(0, len(x), 8):
        with torch.autocast("cuda"):
            part = {"out": model(x[i : i + 8])}
        for key in part:
            found.setdefault(key, []).append(part[key])
    return {key: torch.cat(parts) for key, parts in found.items()}
"""
    forward = "found = chunks(model, x)\nloss = criterion(found['out'], y)"
    assert found(program(forward, helpers)) == []
    # An unknown context may be a region, as it may around a call outside of a dict.
    assert found(program(forward, helpers.replace('torch.autocast("cuda")', "args.timer()"))) == []
    assert found(program(forward, helpers.replace('with torch.autocast("cuda")', "if len(x)"))) == [("info", False)]


def test_a_wrapper_that_is_handed_its_loss_claims_nothing() -> None:
    wrapper = """
import torch

class Scaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, steps):
        loss = loss.div(steps).mean()
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer)
        self._scaler.update()
"""
    assert found(wrapper) == []


MODEL = "import torch\n\nclass Plain(torch.nn.Module):\n    def forward(self, x):\n        return x\n"


def test_only_what_a_training_may_reach_counts(tmp_path: Path) -> None:
    train = program(OUTSIDE, imports="import model")
    evaluating = "import torch, model\n" + EVALUATE
    assert found_among(tmp_path, train=train, model=MODEL, validate=evaluating) == {"train.py"}
    around = "import torch, train\nwith torch.autocast('cuda'):\n    train.train(1, 2, 3, 4, 5)\n"
    assert found_among(tmp_path, validate=around) == set()
    beside = "import torch, train\nwith torch.autocast('cuda'):\n    train.show()\ntrain.train(1, 2, 3, 4, 5)\n"
    assert found_among(tmp_path, validate=beside) == {"train.py"}
    assert found_among(tmp_path, model="import torch\n" + ENTERS) == set()


def test_a_file_alone_is_read_with_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("from .net import Net\n", encoding="utf-8")
    (tmp_path / "nets" / "net.py").write_text("import torch\n" + ENTERS, encoding="utf-8")
    train = tmp_path / "train.py"
    train.write_text(program(OUTSIDE, imports="import nets"), encoding="utf-8")
    assert [f.code for f in check_paths([str(train)]).findings if f.code == "AMP110"] == []
    # The model may be in any file of a project, through any import; without a project, only in files in reach.
    train.write_text(program(OUTSIDE), encoding="utf-8")
    assert [f.code for f in check_paths([str(train)]).findings if f.code == "AMP110"] == []
    (tmp_path / "pyproject.toml").unlink()
    assert [f.code for f in check_paths([str(train)]).findings if f.code == "AMP110"] == ["AMP110"]


@pytest.mark.parametrize(
    "wrap",
    [
        "FullyShardedDataParallel(Net(), mixed_precision=torch.distributed.fsdp.MixedPrecision(torch.float16))",
        "fully_shard(Net(), mp_policy=policy)",
        "FullyShardedDataParallel(Net())",
    ],
)
def test_a_policy_of_fsdp_casts_the_model(wrap: str) -> None:
    """The policy counts in the file that wraps the model, even if the class of the model is unknown."""
    net = ENTERS.replace('torch.autocast("cuda")', "torch.no_grad()")
    imports = "from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard\n" + net
    source = program("loss = criterion(model(x), y)", imports=imports).replace(
        "    scaler =", f"    model = {wrap}\n    scaler ="
    )
    assert len(found(source)) == ("policy" not in wrap and "mixed" not in wrap)


def test_a_policy_of_fsdp_elsewhere_in_the_file() -> None:
    build = """
def build(net):
    return FSDP(net, mixed_precision=torch.distributed.fsdp.MixedPrecision(torch.float16))
"""
    assert found(program(OUTSIDE, build)) == []


ENCODER = """\
import torch
from torch import nn
import torch.nn.functional as F

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 8))

    def forward(self, features, y):
        with torch.autocast("cuda"):
            logits = F.linear(features, self.weight)
        return F.cross_entropy(logits.float(), y)

def train(encoder, loader):
    head = Head()
    optimizer = torch.optim.SGD(encoder.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        features = F.normalize(encoder(x))
        loss = head(features, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def test_an_encoder_outside_of_the_autocast_that_the_loss_enters() -> None:
    findings = [f for f in check_source(ENCODER, "train.py") if f.code == "AMP110"]
    assert [(f.line, f.certain) for f in findings] == [
        (ENCODER.split("\n").index("        features = F.normalize(encoder(x))") + 1, False)
    ]
    inside = ENCODER.replace(
        "        features = F.normalize(encoder(x))",
        "        with torch.autocast('cuda'):\n            features = F.normalize(encoder(x))",
    )
    assert found(inside) == []
    frozen = ENCODER.replace(
        "        features = F.normalize(encoder(x))",
        "        with torch.no_grad():\n            features = F.normalize(encoder(x))",
    )
    assert found(frozen) == []


def test_what_has_train_and_eval_called_is_not_for_that_the_forward() -> None:
    source = """\
import torch

class Trainer:
    def __init__(self, model, preprocessor, optimizer):
        self.model, self.preprocessor, self.optimizer = model, preprocessor, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def evaluate(self):
        self.model.eval()
        self.preprocessor.eval()

    def train(self, loader):
        self.model.train()
        self.preprocessor.train()
        for x in loader:
            x = self.preprocessor.flatten_history(x)
            with torch.autocast("cuda"):
                loss = self.one_step(x)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.model.zero_grad()
"""
    assert found(source) == []
    assert found(source.replace("self.one_step(x)", "self.criterion(x)")) == [("warning", True)]


def test_apex_patches_torch_for_all_that_runs_after_it() -> None:
    build = """
def build(model, optimizer):
    from apex import amp
    return amp.initialize(model, optimizer, opt_level="O1")
"""
    assert found(program(OUTSIDE, after=EVALUATE))
    assert found(program(OUTSIDE, after=EVALUATE + build)) == []


#: A local function keeps the parts of a loss under names that only another file knows.
KEPT = """
import torch
from keys import Keys


def iterate(engine, batch, scaler, optimizer, network, criterion):
    images, labels = engine.prepare(batch)
    engine.output = {{Keys.IMAGE: images, Keys.LABEL: labels}}

    def compute():
        engine.output[Keys.PRED] = network(engine.output[Keys.IMAGE])
        engine.fire(Keys.FORWARD_COMPLETED)
        engine.output[Keys.ERROR] = engine.output[Keys.PRED] - engine.output[Keys.LABEL]
        engine.fire(Keys.ERROR_COMPLETED)
        engine.output[Keys.LOSS] = criterion(engine.output[Keys.ERROR])
        engine.fire(Keys.LOSS_COMPLETED)

    optimizer.zero_grad()
{run}
    scaler.scale(engine.output[Keys.LOSS]).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("run", "reported"),
    [
        ('    with torch.autocast("cuda"):\n        compute()', False),
        ('    compute()\n    with torch.autocast("cuda"):\n        engine.validate()', True),
    ],
)
def test_loss_that_a_local_function_keeps(run: str, reported: bool) -> None:
    assert bool(found(KEPT.format(run=run))) is reported


#: Only the loss enters a region. The scaler has the name of a module of torch.
OWN_REGION = """\
import torch
from torch import nn

class Margin(nn.Module):
    def __init__(self, fp16):
        super().__init__()
        self.fp16, self.weight = fp16, nn.Parameter(torch.randn(10, 8))

    def forward(self, features, y):
        with torch.cuda.amp.autocast(self.fp16):
            logits = nn.functional.linear(features, self.weight)
        return nn.functional.cross_entropy(logits.float(), y)

class Learner:
    def __init__(self, encoder, conf):
        self.encoder, self.loss = encoder, Margin(conf.fp16)
        self.opt = torch.optim.SGD(encoder.parameters(), 0.1)
        self.amp = torch.cuda.amp.GradScaler(growth_interval=100)

    def training_step(self, x, y):
        self.opt.zero_grad()
        loss = self.loss(self.encoder(x), y)
        self.amp.scale(loss).backward()
        self.amp.step(self.opt)
        self.amp.update()
"""


def test_an_attribute_with_a_name_of_torch_enters_no_region() -> None:
    assert "AMP110" in {finding.code for finding in check_source(OWN_REGION, "train.py")}


PENALIZED = """
import torch
from torch import nn

def penalty_on(outputs, real):
    (gradient,) = torch.autograd.grad(outputs.sum(), real, create_graph=True)
    return gradient.square().sum(1).mean()

def train(critic, optimizer, scaler, loader, fake):
    for i, real in enumerate(loader):
        with REGION:
            loss = nn.functional.softplus(critic(fake)).mean() + nn.functional.softplus(-critic(real)).mean()
        critic.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % 16 == 0:
            real.requires_grad_(True)
            outputs = critic(real)
            penalty = PENALTY
            critic.zero_grad()
            scaler.scale(penalty + 0 * outputs[0].sum()).backward()
            scaler.step(optimizer)
            scaler.update()

def main(loader, fake):
    critic = nn.Linear(8, 1).cuda()
    train(critic, torch.optim.Adam(critic.parameters()), torch.amp.GradScaler("cuda"), loader, fake)
"""


@pytest.mark.parametrize(
    ("region", "penalty", "count"),
    [
        ('torch.autocast("cuda")', "penalty_on(outputs, real)", 0),
        ('torch.autocast("cuda")', "outputs.square().mean()", 1),
        ("contextlib.nullcontext()", "penalty_on(outputs, real)", 1),
    ],
)
def test_penalty_on_gradients_is_kept_in_float32(region: str, penalty: str, count: int) -> None:
    source = "import contextlib\n" + PENALIZED.replace("REGION", region).replace("PENALTY", penalty)
    assert len(found(source)) == count


EITHER_SCALER = """\
import torch

def main(model, optimizer, loader, criterion, args):
    scaler = None
    if args.half and args.native:
        scaler = torch.amp.GradScaler("cuda")
    elif args.half:
        from apex import amp
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x, y in loader:
        optimizer.zero_grad()
        if scaler is not None:
            {region}
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss = criterion(model(x), y)
            {backward}
            optimizer.step()
"""
BY_APEX = "with amp.scale_loss(loss, optimizer) as scaled_loss:\n                scaled_loss.backward()"


@pytest.mark.parametrize(
    ("region", "backward", "count"),
    [
        ('with torch.autocast("cuda"):', BY_APEX, 0),
        ("if True:", BY_APEX, 1),
        # Without a loss that apex scales, the scaler of torch may serve the model that apex patches.
        ("if True:", "loss.backward()", 0),
    ],
)
def test_a_scaler_that_is_an_alternative_to_apex(region: str, backward: str, count: int) -> None:
    assert len(found(EITHER_SCALER.format(region=region, backward=backward))) == count


@pytest.mark.parametrize("scales", [True, False])
def test_apex_of_another_file_is_an_alternative_where_its_loss_is_scaled(scales: bool, tmp_path: Path) -> None:
    backward = BY_APEX if scales else "loss.backward()"
    main = "from apex import amp\nfrom engine import main\n\n\ndef run(model, optimizer, *rest):\n"
    (tmp_path / "run.py").write_text(main + "    main(*amp.initialize(model, optimizer), *rest)\n", encoding="utf-8")
    engine = EITHER_SCALER.format(region="if True:", backward=backward)
    start, end = engine.index("    elif args.half"), engine.index("    for x, y")
    (tmp_path / "engine.py").write_text(engine[:start] + engine[end:], encoding="utf-8")
    codes = [finding.code for finding in check_paths([str(tmp_path)]).findings]
    assert codes.count("AMP110") == scales


CONFIGURED = """\
import torch
import yaml

def main(path, data, model, criterion):
    with {context} as source:
        settings = yaml.full_load(source)
    train(data, model, criterion, torch.amp.GradScaler("cuda"), settings)

def train(data, model, criterion, scaler, settings):
    for x, y in data:
        x, y = rotate(x, y, settings["angles"])
        scaler.scale(criterion(model(x), y)).backward()
"""


@pytest.mark.parametrize(
    ("context", "count"),
    [("open(path)", 1), ('path.open("r")', 1), ("path.forward_context()", 0), ("entered(path)", 0)],
)
def test_a_file_that_a_program_opens_is_no_region(context: str, count: int) -> None:
    assert len(found(CONFIGURED.format(context=context))) == count
