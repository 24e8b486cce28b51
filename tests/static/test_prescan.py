"""Results of the prescan of a file's bytes, beside the decision to parse the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths
from pytest_amp_check.static.sources.patterns.code import Code
from pytest_amp_check.static.sources.patterns.declarations import is_torch, taken_names
from pytest_amp_check.static.sources.patterns.fragile_math import fragile_lines
from pytest_amp_check.static.sources.patterns.training import may_affect_importer, may_do_training
from pytest_amp_check.static.sources.prefilter import prescan_file


def code(text: str) -> Code:
    return Code(text.encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("with torch.autocast('cuda'): pass", True),
        ("# autocast is off", True),
        ("return x @ self.weight.t()", True),
        ("torch.set_default_dtype(torch.bfloat16)", True),
        ("torch.set_default_tensor_type('torch.HalfTensor')", True),
        ("model.half()", False),
        ("torch.float16", False),
        ("weight.t = 3", False),
        ("", False),
    ],
)
def test_what_may_enter_autocast(text: str, *, expected: bool) -> None:
    assert code(text).may_enter_autocast is expected
    # A file that may enter a region may compute in float16.
    assert code(text).may_use_float16 is (expected or text in ("model.half()", "torch.float16"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x.half()", True),
        ("x.to(torch.float16)", True),
        ("x.to(torch.bfloat16)", True),
        ("x.to(torch.half)", True),
        ("half = 1 / 2", False),
        ("x.half(2)", False),
        ("behalf()", False),
        ("x.to(torch.float32)", False),
    ],
)
def test_what_speaks_of_float16(text: str, *, expected: bool) -> None:
    assert code(text).may_use_float16 is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Trainer(precision='16-mixed')", True),
        ('Trainer(precision="16-mixed")', True),
        ("options = {'precision': '16-mixed'}", True),
        ('options = {"precision": "16-mixed"}', True),
        ("Trainer(precision=16)", True),
        ("Trainer(precision = '16')", True),
        ('Trainer(precision="16")', True),
        ("Trainer(precision='16-true')", False),
        ("Trainer(precision='bf16-mixed')", False),
        ("Trainer(precision=32)", False),
        ("Trainer(precision='32-true')", False),
        ("name = '16-mixed'", False),
        ('name = "16-mixed"', False),
        ("Trainer(max_epochs=16)", False),
    ],
)
def test_what_has_a_trainer_train_in_float16(text: str, *, expected: bool) -> None:
    assert code(text).has_lightning16 is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer.load_state_dict(state)", True),
        ("self.opt.load_state_dict(state)", True),
        ("opts[0].load_state_dict(state)", True),
        ("self.optimizers[name].load_state_dict(state)", True),
        ("Optimizer.load_state_dict(state)", True),
        ("model.load_state_dict(state)\noptimizer.load_state_dict(state)", True),
        ("optimizer.load_state_dict(state)\nmodel.load_state_dict(state)", True),
        ("thing.load_state_dict(state['optimizer'])", True),
        ('thing.load_state_dict(state["optim_state"])', True),
        ("thing.load_state_dict(state.get('optimizer'))", True),
        ("if state['optimizer'] == 3:\n    thing.load_state_dict(state)", True),
        ("x = 1  # optimizer.load_state_dict(state)", True),
        ("model.load_state_dict(state)", False),
        ("model.load_state_dict(state['model'])", False),
        ("model.load_state_dict(state)\noptimizer.step()", False),
        ("models[0].load_state_dict(state)", False),
        ("model[opt].load_state_dict(state)", False),
        ("state[opt[0]].load_state_dict(state)", False),
        ("x = opt[\n0].load_state_dict(state)", False),
        ("model.load_state_dict(state)\nsaved['optimizer'] = optimizer.state_dict()", False),
        ("# optimizer.load_state_dict(state)", False),
        ("x = 1\n    # optimizer.load_state_dict(state)\n", False),
        ("# optimizer.load_state_dict(state)\nmodel.load_state_dict(state)", False),
        ("optimizer.step()", False),
        ("state['optimizer']", False),
    ],
)
def test_what_may_load_the_state_of_an_optimizer(text: str, *, expected: bool) -> None:
    assert code(text).may_resume is expected


SPEAKS = {
    # Scalers.
    "a scaler that is asked": ("scaler.get_scale()", True),
    "a scaler that is called": ("loss_scaler(loss, optimizer)", True),
    "a scaler that is given": ("step(optimizer, scaler)", True),
    "a scaler that is given first": ("step(scaler, optimizer)", True),
    "a scaler by keyword": ("step(scaler=None)", True),
    "a scaler with a type": ("def f(scaler: Any): pass", True),
    "a scaler that is imported": ("from tools import LossScaler as L", True),
    "a scaler that is alone": ("scaler", False),
    "a scaler in prose": ("# scaler assembly", False),
    "a scaler that is no name": ("x = 'a scaler'", False),
    "unscaling by any name": ("amp.unscale_(opt)", True),
    "scaling and a backward": ("a.scale(loss)\nb.backward()", True),
    "scaling without a backward": ("a.scale(loss)", False),
    "a backward without scaling": ("b.backward()", False),
    # Regions.
    "a region that is stored": ("region = autocast", True),
    "a region that is returned": ("return torch.autocast", True),
    "a region among several": ("with a, torch.autocast: pass", True),
    "a region in a dict": ("{'on': autocast}", True),
    "a region in a list": ("[autocast]", True),
    "a region unpacked": ("f(*autocast)", True),
    "a region behind a bracket": ("f(autocast)", True),
    "a region or nothing": ("x = None or autocast", True),
    "a region in a choice": ("x = a if b else autocast", True),
    "a region in a generator": ("yield autocast", True),
    "a region from a module": ("from amp.autocast import x", True),
    "a region that is called on the next line": ("autocast\n(x)", True),
    "two on a line, the first is a string": ("x = 'autocast', autocast(1)", True),
    "two on a line, the second is a string": ("autocast(1), 'autocast'", True),
    "one that is switched by hand": ("torch._C.enter_autocast()", False),
    "one that is left by hand": ("exit_autocast()", False),
    "one that is registered": ("register_autocast('x', 'cuda', 1)", False),
    "one that is registered beside another": ("register_autocast(x); y = autocast", True),
    "prose": ("the autocast", False),
    "prose that goes on": ("of the autocast mode", False),
    "prose that repeats a word": ("the autocast autocast mode", False),
    "a comment on a later line": ("x = 1\n# autocast(x)", False),
    "a comment before code": ("# autocast(x)\nautocast(x)", True),
    "two comments": ("# autocast(x)\n  # = autocast(y)", False),
    "a comment behind code": ("x = 1  # = autocast(y)", True),
    "a longer name": ("is_autocast_cpu", False),
    "an old getter of the CPU": ("torch.get_autocast_cpu_dtype()", True),
    "an old getter that is text": ("x = 'get_autocast_cpu_dtype'", False),
    # Fills.
    "an item": ("x[mask] = -1e9", True),
    "an item without a sign": ("x[mask] = 1e9", True),
    "a small item": ("x[mask] = -1e3", False),
    "an item that is a name": ("x[mask] = low", False),
    "a number of five digits": ("x.masked_fill(m, -99999)", True),
    "a number of four digits": ("x.masked_fill(m, -9999)", False),
    "a number with dots": ("x.masked_fill(m, -99999.5)", False),
    "an exponent of four": ("x.masked_fill(m, -1e4)", True),
    "an exponent of three": ("x.masked_fill(m, -1e3)", False),
    "an exponent of thirty-eight": ("x.masked_fill(m, -3.4e38)", True),
    "a power of two digits": ("x.masked_fill(m, -2 ** 15)", True),
    "a power of a number of two digits": ("x.masked_fill(m, -10 ** 9)", True),
    "a small power": ("x.masked_fill(m, -2 ** 8)", False),
    "a name of another value": ("low = -1.0\nx.masked_fill(m, low)", False),
    "a name that is given the value elsewhere": ("low = -1e9\nx.masked_fill(m, high)", False),
    "a name that is given the value": ("low = -1e9\nx.masked_fill(m, low)", True),
    "a name with a type": ("low: float = -1e9\nx.masked_fill(m, low)", True),
    "a text of the value": ("low = float('-1e9')\nx.masked_fill(m, low)", True),
    "limits by name": ("low = torch.finfo(torch.float32).min\nx.masked_fill(m, low)", True),
    "an attribute of that name": ("self.low = -1e9\nx.masked_fill(m, self.low)", True),
    "the value in the next call": ("x.masked_fill(m, 0)\nf(-1e9)", False),
    "the second of two fills": ("x.masked_fill(m, 0)\nx.masked_fill(m, -1e9)", True),
    "a fill without brackets": ("x.masked_fill\nf(0, -1e9)", True),
    "a fill by a constant": ("x.masked_fill(m, MASK_VALUE)", True),
    "a fill by a constant of a module": ("x.masked_fill(m, -values.LOWEST)", True),
    "a fill by a name in upper case": ("x.masked_fill(m, NO)", False),
    "a where by its own name": ("where(m, x, -1e9)", True),
    "a where": ("torch.where(m, x, -1e9)", True),
    "a whole tensor": ("torch.full_like(x, -1e9)", True),
    "a fill in place": ("x.fill_(-1e9)", True),
    "a fill at places": ("x.index_fill(0, i, -1e9)", True),
    "another word": ("x.fillna(-1e9)", False),
    # Low precision weights.
    "a cast model": ("model.half()\nopt = SGD(model.parameters())\nopt.step()", True),
    "a cast model of a Trainer": ("from transformers import Trainer\nmodel.half()\nTrainer(model)", True),
    "a cast model of another Trainer": ("from mine import Trainer\nmodel.half()\nTrainer(model)", False),
    "a cast model without a step": ("model.half()\nnorm(model.parameters())", False),
    "a cast model and a step of a scheduler": ("model.half()\nf(model.parameters())\nnoise_scheduler.step()", False),
    "a cast model and two steps": ("model.half()\nf(model.parameters())\nscheduler.step()\nlion.step()", True),
    "a cast model and optim": ("model.half()\noptim.SGD(model.parameters())", True),
    "a cast model and an option": ("model.half()\noptimal(model.parameters())", False),
    "bfloat16": ("model.bfloat16()\noptim.SGD(model.parameters())", True),
    "to": ("model.to(torch.float16)\noptim.SGD(model.parameters())", True),
    "to a device": ("model.to(device)\noptim.SGD(model.parameters())\nhalf = 2", False),
    "type": ("model.type(torch.half)\noptim.SGD(model.parameters())", True),
    "a dtype by name and no low dtype": ("model.to(dtype)\noptim.SGD(model.parameters())", False),
    "the dtype of a checkpoint": ("m.from_pretrained(x, torch_dtype='auto')\noptim.SGD(m.parameters())", True),
    "a Trainer of Lightning": ("Trainer(precision='bf16-true').fit(model)", True),
    "a Trainer of Lightning that tests": ("Trainer(precision='bf16-true').test(model)", False),
    "a Trainer of Lightning in float32": ("Trainer(precision='32').fit(model)", False),
    "a precision without a Trainer": ("Fabric(precision='bf16-true').fit(model)", False),
    "a dtype by name": ("model.to(dtype)\noptim.SGD(model.parameters())\nx = 'float16'", True),
    "a layer": ("nn.Linear(8, 8, dtype=torch.float16)\noptim.SGD(model.parameters())", True),
    "a layer of float32": ("nn.Linear(8, 8, dtype=torch.float32)\noptim.SGD(model.parameters())\nx = 'float16'", False),
    "a pretrained model": ("m.from_pretrained('x', torch_dtype='float16')\noptim.SGD(m.parameters())", True),
    # Averages of weights in low precision.
    "an average of a cast copy": ("self.kept = deepcopy(model).half()\nself.kept.w.lerp_(model.w, 0.1)", True),
    "an average that decays": ("self.kept = w.clone().to(torch.float16)\nself.kept.mul_(0.9).add_(w)", True),
    "an average that is cast later": ("self.kept = deepcopy(model)\nself.kept.half()\nself.kept *= decay", True),
    "a copy without an average": ("self.kept = deepcopy(model).half()", False),
    "an average of a copy in float32": ("self.kept = deepcopy(model)\nself.kept *= decay\nhalf = 1 / 2", False),
    "a copy beside another cast": ("self.kept = deepcopy(model)\nother.half()\nself.kept *= decay", False),
    "an average of what is no copy": ("self.kept = model.half()\nself.kept *= decay", False),
    "a copy outside of a class": ("kept = deepcopy(model).half()\nkept.w.lerp_(model.w, 0.1)", False),
    # Clips and comments.
    "the old clip": ("clip_grad_norm(p, 1)", True),
    "the new clip": ("clip_grad_norm_(p, 1)", False),
    "the clip of values": ("clip_grad_value_(p, 1)", False),
    "a comment for us": ("x = 1  # amp: ignore", True),
    "a comment for us, without a blank": ("x = 1  # amp:ignore[AMP201]", True),
    "a comment for another": ("x = 1  # amp: keep", False),
    "a comment for all": ("x = 1  # noqa", False),
    "a comment for flake8": ("x = 1  # noqa: AMP201", True),
    "a comment for flake8 of another code": ("x = 1  # noqa: E501\nAMP = 201", False),
    "a comment that ends": ("x = 1  # noqa: E501 # AMP", False),
    # Documentation is not code.
    "documentation": ('"""\nautocast(x)\n"""', False),
    "documentation and code": ('"""\nautocast(x)\n"""\nautocast(y)', True),
    "two of them": ('"""\nautocast(x)\n"""\nx = 1\n"""autocast(x)"""', False),
    "documentation between code": ('x = 1\n"""\nautocast(x)\n"""\ny = 2', False),
    "an empty text before documentation": ('""""""\n"""autocast(x)"""', False),
    "two texts on a line": ('f("""autocast(x)""", """autocast(x)""")', False),
    "what is not closed": ('"""\nautocast(x)\n', True),
    "what stands in a comment": ('# """\nautocast(x)\n# """', True),
    "what stands in a string": ('x = \'"""\'\nautocast(x)\ny = \'"""\'', True),
    "what is quoted otherwise": ("'''\nautocast(x)\n'''", True),
    "quotes that are escaped in a second text": ('"""\nautocast(x)\n"""\nx = """\\""" + y + """z"""', True),
    "quotes that are escaped": ('x = """\\"""\nautocast(x)\n"""', True),
    # Code that hides its names.
    "null bytes": ("\0", True),
}


@pytest.mark.parametrize("what", SPEAKS)
def test_what_is_worth_parsing(what: str) -> None:
    text, expected = SPEAKS[what]
    assert code(text).may_have_findings() is expected


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("y = x.pow(2).mean(-1)", [1]),
        ("y = torch.mean(x * x)", [1]),
        ("\ny = torch.mean(x * x)", [2]),
        ("y = x.mean(-1)", []),
        ("y = x.square()", []),
        ("y = (x**2).sum() - z", [1]),
        ("y = z - x**2", []),
        ("y = p.log_prob(x) - q.log_prob(x)", [1]),
        ("y = p.log_prob(x) - z", []),
        ("t = torch.arange(n, dtype=self.inv_freq.dtype)", [1]),
        ("t = torch.arange(n) * self.inv_freq", []),
        ("p = x.softmax(-1).to(dtype)\nbest = p.topk(2)", [1]),
        ("p = x.softmax(-1).to(dtype)\nbest = p.max()", []),
        ("p = x.softmax(-1).type_as(x)\nbest = p.topk(2)", [1]),
        ("p = x.softmax(-1)\nbest = p.topk(2)", []),
        ("p = x.mean().to(dtype)\nbest = p.topk(2)", []),
        ("y = x - (x.mean() * x)\nz = f(x**2)", []),
        ("y = x.mean() * x.pow(2)", [1]),
        ("y = x**2\nz = x - y", []),
        ("y = values - log_prob", []),
        ("y = log_p - scale - log_prob", [1]),
        ("m = x.mean()\n\nwith near:\n    y = x.square().mean()\n    z = (x * x).mean()", [4, 5]),
    ],
)
def test_lines_that_low_precision_may_spoil(text: str, lines: list[int]) -> None:
    assert fragile_lines(text.encode()) == lines


@pytest.mark.parametrize(
    ("text", "bases"),
    [
        ("class A(Base):\n    def f(self): self.loss.backward()", {b"Base"}),
        ("class A(Base):\n    def f(self): self.optimizer.step()", {b"Base"}),
        ("class A(Base):\n    def f(self): self.optimizer.zero_grad()", {b"Base"}),
        ("class A(Base):\n    def f(self): clip_grad_norm_(self.p, 1)", {b"Base"}),
        ("class A(Base):\n    def f(self):\n        with autocast(): pass", {b"Base"}),
        ("class A(one.Base, two.Other):\n    def f(self): x.backward()", {b"Base", b"Other"}),
        ("class A(Base[int]):\n    def f(self): x.backward()", {b"Base"}),
        ("class A(\n    Base,\n    Other,\n):\n    def f(self): x.backward()", {b"Base", b"Other"}),
        ("class A:\n    def f(self): x.backward()", set()),
        ("class A():\n    def f(self): x.backward()", set()),
        ("class A(object):\n    def f(self): x.backward()", set()),
        ("class A(nn.Module):\n    def f(self): x.backward()", set()),
        ("class A(torch.optim.Optimizer):\n    def f(self): x.backward()", set()),
        ("from torch.optim import Optimizer\nclass A(Optimizer):\n    def f(self): x.backward()", set()),
        ("from mine import Optimizer\nclass A(Optimizer):\n    def f(self): x.backward()", {b"Optimizer"}),
        ("class A(Base): ...\nclass B(A):\n    def f(self): x.backward()", {b"Base"}),
        ("class A(Base):\n    def f(self): x.forward()", set()),
        ('class A(Base):\n    """x.backward()"""', set()),
        ("x = 'class A(Base):'\nx.backward()", set()),
        ("# class A(Base):\nx.backward()", set()),
    ],
)
def test_what_classes_derive_from_whose_methods_may_matter(text: str, bases: set[bytes]) -> None:
    assert code(text).base_names() == bases


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from a.b import c, d as e\nclip_grad_norm_(p)", {b"b", b"c", b"d"}),
        ("import a.b as c\nsave(m.state_dict())", {b"b"}),
        ("import a, b\ndef training_step(self): pass", {b"a", b"b"}),
        ("from . import a\nclip_grad_norm_(p)", {b"a"}),
        ("from .a import (\n    b,  # c\n    d,\n)\nclip_grad_norm_(p)", {b"a", b"b", b"d"}),
        ("    from a import b\nclip_grad_norm_(p)", {b"a", b"b"}),
        ("from a import b  # c, d\nclip_grad_norm_(p)", {b"a", b"b"}),
        ("from torch import nn\nimport torch.optim\nclip_grad_norm_(p)", set()),
        ("from torchvision import models\nclip_grad_norm_(p)", {b"torchvision", b"models"}),
        ("from a import *\nclip_grad_norm_(p)", {b"a", b"*"}),
        ("x = 1; from a import b\nclip_grad_norm_(p)", set()),
        ("# from a import b\nclip_grad_norm_(p)", set()),
        ("fromage = 1\nclip_grad_norm_(p)", set()),
        ("from a import b", set()),
        ('from a import b\n"""clip_grad_norm_(p)"""', set()),
    ],
)
def test_what_a_file_imports_that_leaves_the_training_to_others(text: str, names: set[bytes]) -> None:
    assert code(text).imported_names() == names


@pytest.mark.parametrize(
    ("text", "chooses", "may_be_float16"),
    [
        ("m.from_pretrained(x, torch_dtype=dtype)", True, True),
        ("m.from_pretrained(x, torch_dtype = torch.float16)", True, True),
        ("m.from_pretrained(x, torch_dtype=torch.bfloat16)", True, False),
        ("Trainer(precision='16-true')", True, True),
        ("deepspeed.initialize(model=model)", True, True),
        ("MixedPrecisionPolicy(torch.bfloat16)", True, True),
        ("m.from_pretrained(x)", False, False),
        ("Trainer(precision='16-mixed')", False, False),
    ],
)
def test_who_chooses_the_dtype_of_a_model(text: str, *, chooses: bool, may_be_float16: bool) -> None:
    assert code(text).chooses_model_dtype is chooses
    assert code(text).may_choose_float16 is may_be_float16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\nmodel.half()", True),
        ("self.model.bfloat16()", True),
        ("model_ema.to(torch.float16)", True),
        ("model.to('cuda', torch.half)", True),
        ("model = Net(3).to(device, torch.bfloat16)", True),
        ("model = Net(3)\nx.half()", False),
        ("y = model(x.half())", False),
        ("x.half()", False),
        ("model.to(device)", False),
        ("model.float()", False),
    ],
)
def test_who_casts_a_model(text: str, *, expected: bool) -> None:
    assert code(text).casts_model is expected


EVERYTHING = """import torch
with torch.autocast("cuda"):
    Trainer(precision=16)
optimizer.load_state_dict(state)
"""


@pytest.mark.parametrize(("name", "expected"), [("a.py", True), ("a.md", False)])
def test_what_documentation_shows_is_none_of_a_program(tmp_path: Path, name: str, *, expected: bool) -> None:
    path = tmp_path / name
    path.write_text(EVERYTHING if expected else f"```python\n{EVERYTHING}```\n")
    seen = prescan_file(str(path), largest=0)
    assert seen.may_have_findings
    facts = (seen.may_enter_autocast, seen.may_use_float16, seen.has_lightning16, seen.may_resume)
    assert facts == (expected,) * 4


@pytest.mark.parametrize(
    ("text", "expected"), [("save(model.state_dict())", True), ("def training_step(self): pass", True), ("x", False)]
)
def test_what_leaves_the_training_to_other_files(tmp_path: Path, text: str, *, expected: bool) -> None:
    (tmp_path / "a.py").write_text(text)
    assert prescan_file(str(tmp_path / "a.py"), largest=0).does_training_part is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss.backward()", True),
        ("self.manual_backward(loss)", True),
        ("y = ctx.manual_backward(loss)", True),
        ("norm = loss.backward(retain_graph=True)", True),
        ("run_backward(loss, optimizer)", True),
        ("if ready: self._backward(loss)", True),
        ("def backward(self, loss): loss.backward()", True),
        ("def backward(ctx, grad):\n    return grad", False),
        ("ctx.save_for_backward(x)", False),
        ("super().on_after_backward()", False),
        ("grad = aten.unfold_backward(y, 1)", False),
        ("return torch.ops.aten.gelu_backward(y)", False),
        ("merge(softmax_backward(y), 1)", False),
        ("# loss.backward()", False),
        ("backward = 1", False),
    ],
)
def test_what_runs_backward(text: str, *, expected: bool) -> None:
    assert code(text).runs_backward is expected
    # A loss that is not finite makes a rank skip its backward.
    assert code(f"{text}\nif loss.isnan(): pass").may_have_findings() is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if loss.isnan(): continue", True),
        ("bad = torch.isinf(loss)", True),
        ("assert a\nok = math.isfinite(loss)", True),
        ("assert not torch.isnan(loss)", False),
        ("self.assertTrue(loss.isfinite().all())", False),
        ("", False),
    ],
)
def test_what_may_skip_a_backward(text: str, *, expected: bool) -> None:
    assert code(f"loss.backward()\n{text}").may_have_findings() is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class A(Trainer):\n    def compute_loss(self, model, **kwargs): ...", True),
        ("class A(Mine):\n    def compute_loss(self, model, num_items_in_batch): ...", True),
        ("class A(Mine):\n    def compute_loss(self, model): ...", False),
        ("Trainer(model)\nloss = self.compute_loss(x)", False),
    ],
)
def test_who_computes_the_loss_of_a_trainer(text: str, *, expected: bool) -> None:
    assert code(text).may_have_findings() is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("isinstance(context, torch.amp.autocast_mode.autocast)", False),
        ("isinstance(context, (nullcontext, torch.autocast))", False),
        ("isinstance(context, nullcontext), torch.autocast", True),
        ("isinstance(autocast('cuda'), nullcontext)", True),
        ("self.enable_autocast = (dtype == torch.float16)", False),
        ("Config(fp8_autocast=True)", False),
        ("self.amp_autocast = torch.autocast", True),
        ("self.amp_autocast = make_autocast('cuda')", True),
        ("with self.amp_autocast: pass", True),
        ("if self.enable_autocast == 1: pass", True),
        ("Config(autocast=True)", True),
        ("if isinstance(context, autocast): context = autocast('cuda')", True),
    ],
)
def test_a_test_of_a_type_and_a_flag_enter_no_region(text: str, *, expected: bool) -> None:
    assert code(text).may_have_findings() is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scaler = GradScaler()", True),
        ("loss.backward()", True),
        ("optimizer.step()", True),
        ("optimizer.update_params(loss)", True),
        ("scheduler.step()", False),
        ("ctx.save_for_backward(x)", False),
        ('def f():\n    """loss.backward()"""', False),
    ],
)
def test_what_is_a_step_of_a_training(tmp_path: Path, text: str, *, expected: bool) -> None:
    (tmp_path / "a.py").write_text(f"with autocast('cuda'): pass\n{text}\n")
    assert prescan_file(str(tmp_path / "a.py"), largest=0).does_training_step is expected


@pytest.mark.parametrize(("step", "expected"), [("loss.backward()", True), ("loss.sum()", False)])
def test_a_part_of_a_training_is_read_beside_another_part(tmp_path: Path, step: str, *, expected: bool) -> None:
    (tmp_path / "train.py").write_text(f"def train(loss):\n    with torch.autocast('cuda'):\n        {step}\n")
    (tmp_path / "keep.py").write_text("from train import train\nsave(model.state_dict())\n")
    report = check_paths([str(tmp_path)])
    skipped = [path for paths in report.passed_over.values() for path in paths]
    assert (str(tmp_path / "keep.py") not in skipped) is expected


@pytest.mark.parametrize(
    ("export", "name", "expected"),
    [
        ("from .train import Trainer", "Trainer", True),
        ("from .train import Trainer as Base", "Base", True),
        ("from .train import *", "Trainer", True),
        ("from .more import Trainer", "Trainer", True),
        ("from .train import Trainer\nfrom .tool import size", "size", False),
    ],
)
def test_a_package_exports_the_other_part_of_a_training(
    tmp_path: Path, export: str, name: str, *, expected: bool
) -> None:
    for path, text in {
        "train/__init__.py": export,
        "train/train.py": "class Trainer:\n    def fit(self, loss, scaler):\n        scaler.scale(loss).backward()\n",
        "train/tool.py": "size = 3\n",
        "train/more/__init__.py": "from ..train import Trainer\n",
        "keep.py": f"from train import {name}\nsave(model.state_dict())\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    report = check_paths([str(tmp_path)])
    skipped = [path for paths in report.passed_over.values() for path in paths]
    assert (str(tmp_path / "keep.py") not in skipped) is expected


@pytest.mark.parametrize("name", ["a.py", "a.ipynb"])
def test_what_only_programs_in_files_are_searched_for(tmp_path: Path, name: str) -> None:
    text = "import torch\ndef f(x):\n    return m.from_pretrained(x, torch_dtype=dtype), x.pow(2).mean()\n"
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": text}]}))
    seen = prescan_file(str(tmp_path / name), largest=0)
    facts = (seen.chooses_model_dtype, seen.has_fragile_math, seen.computes_tensors)
    assert facts == (name == "a.py",) * 3


def test_imported_names() -> None:
    assert taken_names(b"(a as b,  # c\n    d)") == [b"a", b"d"]


def test_names_of_classes() -> None:
    text = "class A: ...\n  class B(A): ...\nx = 'class C'\nclass D[T](B): ...\nclassy = 1\n# class E:\n"
    assert code(text).class_names() == {b"A", b"B", b"D"}


@pytest.mark.parametrize(
    ("text", "helps", "trains"),
    [
        ("with autocast(): pass", True, False),
        ("GradScaler()", True, True),
        ("loss.backward()", True, True),
        ("opt.zero_grad()", True, True),
        ("s.unscale_(opt)", False, True),
        ("model.update_params(loss)", False, True),
        ("clip_grad_norm_(p)", True, False),
        ("scheduler.step()", True, False),
        ("torch.save(x)", True, False),
        ("import torch.optim", True, False),
        ("def forward(x): return x", False, False),
    ],
)
def test_what_helps_others_and_what_trains(text: str, *, helps: bool, trains: bool) -> None:
    assert may_affect_importer(text.encode()) is helps
    assert may_do_training(text.encode()) is trains


def test_modules_of_torch() -> None:
    assert [is_torch(name) for name in (b"torch", b"torch.amp", b"torchvision", b"a.torch", b"")] == [
        True,
        True,
        False,
        False,
        False,
    ]
