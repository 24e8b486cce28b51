"""Code whose precision its user chooses: the option ``assume-precision``, and evidence in the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.frontends.cli import main
from pytest_amp_check.static.engine import check_paths, check_source
from pytest_amp_check.static.settings import Settings

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F

"""
LOADS = "from transformers import AutoModel\nmodel = AutoModel.from_pretrained('x', torch_dtype='auto')\n"
REGION = "import torch\nwith torch.autocast('cuda', dtype=torch.float16):\n    y = model(x)\n"


def said(body: str, dtype: str = "") -> list[tuple[str, int, str]]:
    """Return code, line (from 1 in the body) and severity of each finding."""
    findings = check_source(HEAD + body, "layers.py", Settings(assumed_dtype=dtype))
    assert not any(finding.certain for finding in findings)
    return [(f.code, f.line - HEAD.count("\n"), f.severity) for f in findings]


def forward(*statements: str, more: str = "") -> str:
    return f"class Layer(nn.Module):\n{more}    def forward(self, x):\n" + "".join(f"        {s}\n" for s in statements)


def found_in(tmp_path: Path, other: str, body: str) -> list[tuple[str, int, str]]:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "use.py").write_text(other)
    (tmp_path / "layers.py").write_text(HEAD + body)
    findings = check_paths([str(tmp_path)]).findings
    return [(f.code, f.line - HEAD.count("\n"), f.severity) for f in findings if f.filename.endswith("layers.py")]


@pytest.mark.parametrize(
    ("name", "expected"), [("layers.py", False), ("test_layers.py", True), ("layers_test.py", True)]
)
def test_tests_choose_the_dtype_of_their_inputs(tmp_path: Path, name: str, *, expected: bool) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "use.py").write_text(LOADS)
    (tmp_path / name).write_text(HEAD + forward("return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)"))
    report = check_paths([str(tmp_path)])
    skipped = [path for paths in report.passed_over.values() for path in paths]
    assert (str(tmp_path / name) in skipped) is expected
    assert (str(tmp_path / name) in {finding.filename for finding in report.findings}) is not expected


NORM = "return x * torch.rsqrt({} + 1e-5)"


@pytest.mark.parametrize(
    ("mean", "found"),
    [
        ("torch.mean(x * x, dim=-1, keepdim=True)", True),
        ("x.pow(2).mean(-1, keepdim=True)", True),
        ("torch.mean(x ** 2, -1, keepdim=True)", True),
        ("x.square().mean(-1, keepdim=True)", True),
        ("x.float().pow(2).mean(-1, keepdim=True)", False),
        ("x.pow(2).float().mean(-1, keepdim=True)", False),
        ("torch.mean(x.to(torch.float32) ** 2, -1, keepdim=True)", False),
        ("x.tanh().square().mean(-1, keepdim=True)", False),
        ("x.abs().mean(-1, keepdim=True)", False),
        ("(x.abs() ** 2).mean(-1, keepdim=True)", False),
        ("torch.abs(x).pow(2).mean(-1, keepdim=True)", False),
    ],
)
def test_means_of_squares_overflow_in_float16(mean: str, found: bool) -> None:
    expected = [("AMP507", 3, "warning")] if found else []
    assert said(forward(NORM.format(mean)), "float16") == expected
    assert said(forward(NORM.format(mean))) == []


@pytest.mark.parametrize(
    ("norm", "found"),
    [
        ("x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)", True),
        ("x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)", True),
        ("x / torch.sqrt(1e-5 + torch.mean(x ** 2, -1, keepdim=True))", True),
        ("x * (x.square().mean(-1, keepdim=True) + 1e-5) ** -0.5", True),
        ("x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()", True),
        ("(x - x.mean(1)) * (torch.var(x, dim=1, unbiased=False) + 1e-5).rsqrt()", True),
        ("(x - x.mean(1)) / (x.std(1) + self.eps)", True),
        ("x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)", False),
        ("x / (x.float().std(1) + 1e-5)", False),
        ("x * x.pow(2).mean(-1, keepdim=True)", False),
        ("torch.log(x.var(1) + 1e-5)", False),
        ("x.var(1) - x.mean(1)", False),
    ],
)
def test_a_norm_of_values_in_bfloat16_has_a_rounded_divisor(norm: str, found: bool) -> None:
    more = "    def __init__(self, eps):\n        super().__init__()\n        self.eps = eps\n"
    assert [code for code, *_ in said(forward(f"return {norm}", more=more), "bfloat16")] == ["AMP507"] * found
    assert said(forward(f"return {norm}", more=more)) == []


def test_a_cast_at_the_only_call_counts() -> None:
    helper = "    def norm(self, x):\n        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)\n"
    assert said(forward("return self.norm(x.float()).type_as(x)", more=helper), "float16") == []
    assert said(forward("return self.norm(x)", more=helper), "float16") == [("AMP507", 3, "warning")]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("return (x * x).mean(1, keepdim=True) - m * m", True),
        ("return x.pow(2).mean(1) - x.mean(1).pow(2)", True),
        ("return torch.mean(x ** 2, 1) - torch.mean(x, 1) ** 2", True),
        ("return F.avg_pool2d(x * x, 3) - m.square()", True),
        ("return self.window(x * x) - m * m", True),
        ("return F.conv2d(x * x, w) - m ** 2", True),
        ("return 2 * (x * x).mean(1) - m * m", True),
        ("return (x * x).mean(1) / 2 - m * m", True),
        ("return torch.sum(w * (x ** 2), dim=1) - m ** 2", True),
        ("return (x.pow(2) * w).sum(1) - m.square()", True),
        ("return torch.sum(2 * (x ** 2), dim=1) - m", False),
        ("return torch.sum(w.float() * (x.float() ** 2), dim=1) - m.float() ** 2", False),
        ("return (x * x).mean(1) + 1 - m * m", False),
        ("x = x.float(); return F.avg_pool2d(x * x, 3) - m.float().square()", False),
        ("return (x * x).mean(1, keepdim=True) - m", False),
        ("return (x - m).abs().mean(1) - m * m", False),
    ],
)
def test_differences_of_moments_cancel(statement: str, found: bool) -> None:
    more = "    def __init__(self, w):\n        super().__init__()\n        self.window = nn.AvgPool2d(3)\n"
    findings = said(forward("m, w = x.mean(1), self.window(x)", statement, more=more), "bfloat16")
    assert [code for code, *_ in findings] == (["AMP507"] if found else [])


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("def kl(log_probs: torch.Tensor, base_log_probs: torch.Tensor):\n    return log_probs - base_log_probs", True),
        ("def kl(p: torch.Tensor, q: torch.Tensor):\n    return F.log_softmax(p, -1) - torch.log_softmax(q, -1)", True),
        ("def one(log_probs: torch.Tensor):\n    return (log_probs - log_probs.detach()).exp()", False),
        ("def kl(log_probs: torch.Tensor, base_logp: torch.Tensor):\n    return log_probs - base_logp.detach()", True),
        ("def kl(p: torch.Tensor, q: torch.Tensor):\n    return (p.log_softmax(-1) - q.log_softmax(-1)).exp()", True),
        (
            "def kl(log_probs: torch.Tensor, base: torch.Tensor):\n    return log_probs.float() - base.float()",
            False,
        ),
        (
            "def kl(p: torch.Tensor, q: torch.Tensor):\n    return p.float().log_softmax(1) - q.float().log_softmax(1)",
            False,
        ),
        ("def kl(log_probs: torch.Tensor, scale: float):\n    return log_probs - scale", False),
        ("def kl(log_probs: list, base_log_probs: list):\n    return log_probs - base_log_probs", False),
    ],
)
def test_differences_of_log_probabilities_cancel(function: str, found: bool) -> None:
    assert [(code, line) for code, line, _ in said(function + "\n", "bfloat16")] == ([("AMP507", 2)] if found else [])


MODEL = """\
class Actor(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.head = model, nn.Linear(8, 8)
        self.criterion, self.distance = nn.CrossEntropyLoss(), nn.MSELoss()
    def forward(self, x, labels):
        {}
"""
LOOP = """\
def train(model, batches, optimizer):
    for ids, labels in batches:
        optimizer.zero_grad()
        {}
        loss.backward()
        optimizer.step()
"""
TRAINER = """\
from transformers import Trainer
class RewardTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        _, _, values = model(**inputs)
        chosen, rejected = values.chunk(2)
        return -F.logsigmoid({}).mean()
"""


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def loss(logits: torch.Tensor, labels):\n    return F.cross_entropy(logits, labels)\n", 2),
        ("def loss(logits: torch.Tensor, labels):\n    return F.cross_entropy(logits.float(), labels)\n", None),
        ("def logs(logits: torch.Tensor):\n    return F.log_softmax(logits, dim=-1)\n", 2),
        ("def logs(logits: torch.Tensor):\n    return F.log_softmax(logits, -1, dtype=torch.float32)\n", None),
        ("def logs(logits: torch.Tensor):\n    return F.softmax(logits, dim=-1)\n", 2),
        ("def loss(x: torch.Tensor, y: torch.Tensor):\n    return F.mse_loss(x, y)\n", None),
        (MODEL.format("return F.nll_loss(self.model(x), labels)"), 7),
        (MODEL.format("return F.cross_entropy(self.model(x)['logits'][:, :-1], labels)"), 7),
        (MODEL.format("return F.cross_entropy(self.model(x).logits, labels)"), 7),
        (MODEL.format("return F.cross_entropy(self.model(x).logits.float(), labels)"), None),
        (MODEL.format("return self.criterion(self.head(x), labels)"), 7),
        (MODEL.format("return self.criterion(self.head(x).float(), labels)"), None),
        (MODEL.format("return self.distance(self.head(x), labels)"), None),
        (LOOP.format("loss = F.cross_entropy(model(ids).logits, labels)"), 4),
        (LOOP.format("loss = F.cross_entropy(model(ids).logits.float(), labels)"), None),
        (LOOP.format("loss = model(ids, labels=labels).loss"), None),
        (
            LOOP.format(
                "with torch.autocast('cuda', dtype=torch.bfloat16):\n"
                "            loss = F.cross_entropy(model(ids), labels)"
            ),
            None,
        ),
        (TRAINER.format("chosen - rejected"), 6),
        (TRAINER.format("chosen.float() - rejected.float()"), None),
    ],
)
def test_losses_keep_the_low_dtype_of_their_logits_without_autocast(code: str, line: int | None) -> None:
    for dtype in ("float16", "bfloat16"):
        assert [at for rule, at, _ in said(code, dtype) if rule == "AMP507"] == ([] if line is None else [line])
    assert all(rule != "AMP507" for rule, _, _ in said(code))


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (LOADS, True),
        (LOADS.replace("'auto'", "dtype"), True),
        (LOADS.replace("'auto'", "torch.bfloat16"), False),  # only float16 overflows
        ("fabric = L.Fabric(precision='bf16-true')\n", True),
        ("import deepspeed\nengine, *_ = deepspeed.initialize(model=model)\n", True),
        ("x = 1\n", False),
        ("import torch\nmodel = torch.load('x').cuda()\n", False),
    ],
)
def test_evidence_gives_notes(tmp_path: Path, other: str, found: bool) -> None:
    body = forward(NORM.format("torch.mean(x ** 2, -1, keepdim=True)"))
    assert found_in(tmp_path, other, body) == ([("AMP507", 3, "info")] if found else [])


def test_a_region_computes_powers_in_float32_but_products_in_float16(tmp_path: Path) -> None:
    body = forward("a = (x * x).mean(-1, keepdim=True)", "b = (x ** 2).mean(-1, keepdim=True)", "return a + b")
    assert found_in(tmp_path, REGION, body) == [("AMP507", 3, "info")]


def test_a_loss_and_an_epsilon_need_the_option(tmp_path: Path) -> None:
    body = forward("return x / (x.norm() + 1e-8) + (x * x).mean()")
    assert found_in(tmp_path, LOADS, body) == []
    assert [code for code, *_ in said(body, "float16")] == ["AMP505", "AMP507"]


def test_a_decorator_that_casts_counts() -> None:
    body = forward(NORM.format("torch.mean(x * x, -1, keepdim=True)")).replace(
        "    def", "    @torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)\n    def"
    )
    assert said(body, "float16") == []


def test_a_test_chooses_its_own_dtypes(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(LOADS)
    (tmp_path / "test_layers.py").write_text(HEAD + forward(NORM.format("torch.mean(x * x, -1, keepdim=True)")))
    assert check_paths([str(tmp_path)]).findings == []


def test_the_option_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "layers.py").write_text(HEAD + forward(NORM.format("torch.mean(x * x, -1, keepdim=True)")))
    words = ["check", "--isolated", "--no-cache", "--output-format", "concise", str(tmp_path)]
    assert main(words) == 0
    assert main([*words, "--assume-precision", "fp16"]) == 1
    assert "AMP507" in capsys.readouterr().out


def test_the_cache_knows_the_option(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(HEAD + forward(NORM.format("torch.mean(x * x, -1, keepdim=True)")))
    cache = str(tmp_path / ".amp_check_cache")
    for dtype, severity in (("", []), ("float16", ["warning"]), ("bfloat16", ["info"]), ("float16", ["warning"])):
        found = check_paths([str(tmp_path)], Settings(assumed_dtype=dtype), cache=cache).findings
        assert [finding.severity for finding in found] == severity


ROTARY = """\
class Rotary(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, x, position_ids):
        {}
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


model = Rotary().to(torch.bfloat16)
"""


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ('angles = torch.einsum("i,j->ij", position_ids.type_as(self.inv_freq), self.inv_freq)', True),
        ("angles = torch.outer(torch.arange(len(x), dtype=self.inv_freq.dtype), self.inv_freq)", True),
        ("angles = position_ids.to(self.inv_freq)[:, None] * self.inv_freq[None]", True),
        ('angles = torch.einsum("i,j->ij", position_ids.float(), self.inv_freq.float())', False),
        ("t = position_ids.to(self.inv_freq.dtype); angles = x * self.inv_freq", False),
    ],
)
def test_positions_in_the_dtype_of_a_cast_buffer(statement: str, found: bool) -> None:
    assert said(ROTARY.format(statement)) == ([("AMP509", 7, "info")] if found else [])


def test_float32_angles_of_frequencies_that_a_cast_has_rounded() -> None:
    """A cast back brings no digits back: the buffer itself is the place."""
    angles = "angles = torch.outer(torch.arange(len(x), dtype=torch.float32), self.inv_freq.float())"
    assert said(ROTARY.format(angles)) == [("AMP509", 4, "info")]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ('freqs = torch.einsum("i,j->ij", position_ids.type_as(self.inv_freq), self.inv_freq)', True),
        ("freqs = torch.outer(torch.arange(len(x), dtype=self.inv_freq.dtype), self.inv_freq)", True),
        ("freqs = position_ids.to(self.inv_freq)[:, None] * self.inv_freq[None]", True),
        ('freqs = torch.einsum("i,j->ij", position_ids.float(), self.inv_freq.float())', False),
        ("freqs = position_ids.to(self.inv_freq)[:, None] * self.scale", False),
    ],
)
def test_a_caller_computes_the_sine_and_cosine_of_the_angles(statement: str, found: bool) -> None:
    body = ROTARY.format(f"{statement}; return freqs")
    assert said(body) == ([("AMP509", 7, "info")] if found else [])


def test_a_buffer_is_cast_after_the_constructor() -> None:
    statement = 'angles = torch.einsum("i,j->ij", torch.arange({}, dtype=self.inv_freq.dtype), self.inv_freq)'
    table = '        self.register_buffer("table", angles.cos())\n'
    body = ROTARY.format(statement.format("len(x)")).replace(
        "\n    def forward", f"        {statement.format(2048)}\n{table}\n    def forward"
    )
    assert said(f"{body}\n\nclass Outer(nn.Module):\n    def __init__(self):\n        self.rotary = Rotary()\n") == [
        ("AMP509", 9, "info")
    ]


CACHE = """\
class Rotary(nn.Module):
    def __init__(self, dim=32, length=2048):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim))
        self.{name}(length)

    def {name}(self, length):
        freqs = torch.outer(torch.arange(length, dtype=self.inv_freq.dtype), self.inv_freq)
        self.register_buffer("table", freqs.cos())

    def forward(self, x):
        {first}
        return x * self.table[: len(x)]
"""


@pytest.mark.parametrize(
    ("name", "first", "found"),
    [
        ("_fill_table", "x = x * 2.0", False),
        # Other code may call a public method, and the forward calls it after a cast.
        ("fill_table", "x = x * 2.0", True),
        ("_fill_table", "if len(x) > len(self.table): self._fill_table(len(x))", True),
    ],
)
def test_a_constructor_fills_a_table_before_a_cast(tmp_path: Path, name: str, first: str, found: bool) -> None:
    body = CACHE.format(name=name, first=first)
    assert found_in(tmp_path, LOADS, body) == ([("AMP509", 8, "info")] if found else [])


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("torch.arange(len(x), device='cpu', dtype=torch.float32)", False),
        ("torch.arange(len(x), device=torch.device('cpu')).float()", False),
        ("torch.arange(len(x), device=x.device, dtype=torch.float32)", True),
        ("torch.arange(len(x), device='cuda').float()", True),
        ("torch.arange(len(x), device='cpu', dtype=torch.float32).to(x.device)", True),
        ("torch.arange(len(x), device='cpu', dtype=torch.float32).to('cuda')", True),
    ],
)
def test_a_region_of_the_gpu_leaves_the_cpu_alone(made: str, found: bool) -> None:
    statements = (f"positions = {made}", "freqs = torch.einsum('i,j->ij', positions, inv_freq)", "return freqs.cos()")
    body = forward(*statements).replace("self, x", "self, x, inv_freq")
    assert said(body, "bfloat16") == ([("AMP509", 4, "warning")] if found else [])


SIMILARITY = """\
def similarity(a, b, kernel):
    conv = nn.Conv2d(1, 1, 11)
    {start}
    mean = conv(a)
    variance = conv(a ** 2) - mean ** 2
    return (variance / conv(b)).mean()
"""


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("a, b = a.cuda(), b.cuda()", True),
        ("a, b = a.float(), b.float()", True),
        # Metrics get arrays, which the forward pass of a model has not computed.
        ("a, b = torch.tensor(a.astype(np.float32)), torch.tensor(b.astype(np.float32))", False),
        ("a = torch.from_numpy(a.astype('float32')).cuda(); b = torch.from_numpy(b).cuda()", False),
        ("k = kernel.weight.numpy().astype('float32'); conv.weight.data = torch.tensor(k)", True),
    ],
)
def test_a_metric_of_arrays_is_no_part_of_a_forward_pass(tmp_path: Path, start: str, found: bool) -> None:
    expected = [("AMP507", 5, "info")] if found else []
    assert found_in(tmp_path, REGION, SIMILARITY.format(start=start)) == expected


LOG_RATIO = (
    "def loss(log_probs: torch.Tensor, old_log_probs: torch.Tensor):\n    return (log_probs - old_log_probs).exp()\n"
)
ACTOR = """\
class Actor(nn.Module):
    def forward(self, x):
        {}
        return output
"""


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("", True),
        (ACTOR.format("output = self.head(x)"), True),
        (ACTOR.format("output = self.head(x).float()"), False),
        (ACTOR.format("output = self.head(x).to(torch.float32)"), False),
        (ACTOR.format("scores = self.gate(x).float(); output = self.head(x)"), True),
        (ACTOR.format('output["logits"] = output["logits"].to(torch.float32)'), False),
        ("def means(output):\n    return output.logits.float().mean()\n", True),
        ("def likelihood(output):\n    return F.log_softmax(output.logits.float(), -1)\n", False),
        ("def likelihood(output):\n    return F.log_softmax(output.logits, -1)\n", True),
        ("with torch.autocast('cuda', dtype=torch.bfloat16):\n    x = model(x)\n    log_prob = f(x)\n", False),
        ("with torch.autocast('cuda', dtype=torch.bfloat16):\n    x = model(x)\nlog_prob = f(x)\n", True),
        ("with torch.autocast('cuda', enabled=False):\n    log_prob = f(x)\n", True),
    ],
)
def test_a_package_may_compute_log_probabilities_in_float32(tmp_path: Path, other: str, found: bool) -> None:
    expected = [("AMP507", 2, "info")] if found else []
    assert found_in(tmp_path, LOADS + HEAD + other, LOG_RATIO) == expected
    # A test of the package shows nothing about the package.
    (tmp_path / "use.py").rename(tmp_path / "test_use.py")
    assert found_in(tmp_path, LOADS, LOG_RATIO) == [("AMP507", 2, "info")]


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        ("F.softmax(self.gate(x).float(), dim=-1).to(x.dtype)", True),
        ("torch.sigmoid(self.gate(x).float()).type_as(x)", True),
        ("F.softmax(self.gate(x).float(), dim=-1)", False),
        ("F.softmax(self.gate(x).float(), dim=-1).to(torch.float32)", False),
    ],
)
def test_probabilities_are_ranked_before_their_cast(scores: str, found: bool) -> None:
    more = "    def __init__(self):\n        super().__init__()\n        self.gate = nn.Linear(8, 4)\n"
    body = forward(f"scores = {scores}", "return torch.topk(scores, 2, dim=-1)", more=more)
    assert said(body, "bfloat16") == ([("AMP507", 7, "warning")] if found else [])


def test_a_zero_vector_is_normalized(tmp_path: Path) -> None:
    assert said(forward("return F.normalize(x, dim=-1)"), "float16") == [("AMP505", 3, "warning")]
    assert said(forward("return F.normalize(x, dim=-1, eps=1e-4)"), "float16") == []
    assert said(forward("return F.normalize(x.float(), dim=-1)"), "float16") == []
    assert said(forward("return F.normalize(x, dim=-1)"), "bfloat16") == []


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("def masked(scores, mask):\n    return scores.masked_fill(mask, -1e9)\n", 2),
        ("def masked(scores, mask):\n    return torch.masked_fill(scores, mask, -1e9)\n", 2),
        ("def masked(scores, i):\n    return torch.index_fill(input=scores, dim=0, index=i, value=-1e9)\n", 2),
        ("def masked(scores, mask):\n    scores = scores.masked_fill_(mask == 0, value=-1e10)\n    return scores\n", 2),
        ("LOW = -1e9\n\ndef masked(scores, mask):\n    return F.softmax(scores.masked_fill(mask, LOW), -1)\n", 4),
        ("def masked(scores: torch.Tensor, mask):\n    scores[mask] = -1e9\n    return scores\n", 2),
        (forward("x = x.masked_fill(x > 0, -1e9)", "return F.softmax(x, -1)"), 3),
    ],
)
def test_numbers_that_float16_cannot_hold_overflow_in_received_tensors(body: str, line: int) -> None:
    # The softmax of some of the programs is low as well.
    assert [each for each in said(body, "float16") if each[0] != "AMP507"] == [("AMP506", line, "error")]
    assert [each for each in said(body, "bfloat16") if each[0] != "AMP507"] == []
    assert said(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "def masked(scores, mask):\n    return scores.masked_fill(mask, -1e4)\n",
        "def masked(scores, mask):\n    return scores.masked_fill(mask, float('-inf'))\n",
        "def masked(scores, mask):\n    return scores.masked_fill(mask, torch.finfo(scores.dtype).min)\n",
        "def masked(scores, mask):\n    return scores.float().masked_fill(mask, -1e9)\n",
        "def masked(scores, mask):\n    scores = scores.float()\n    scores[mask] = -1e9\n    return scores\n",
        "def label(labels, mask):\n    return labels.masked_fill(mask, -100_000)\n",
    ],
)
def test_numbers_that_fit_or_wider_tensors_are_silent(body: str) -> None:
    assert said(body, "float16") == []


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ("NEAR_INF = 1e20\n", [("AMP506", 4, "error")]),
        ("NEAR_INF: float = 1e20  # of a mask\n", [("AMP506", 4, "error")]),
        ("NEAR_INF = 1.0e5\n", [("AMP506", 4, "error")]),
        ("NEAR_INF = 100000.0\n", [("AMP506", 4, "error")]),
        ("NEAR_INF = 100000\n", []),
        ("NEAR_INF = 6e4\n", []),
        ("NEAR_INF = 1e20\nif small():\n    NEAR_INF = 6e4\n", []),
        ("NEAR_INF = 1e20\nNEAR_INF = 6e4\n", []),
        ("def NEAR_INF(dtype):\n    return 1e20\n", []),
    ],
)
def test_a_constant_of_another_file_is_known(
    constants: str, expected: list[tuple[str, int, str]], tmp_path: Path
) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "constants.py").write_text(constants)
    (tmp_path / "layers.py").write_text(
        f"{HEAD}from .constants import NEAR_INF\n\n"
        "def masked(scores, mask):\n    return scores.masked_fill(mask, -NEAR_INF)\n"
    )
    findings = check_paths([str(tmp_path)], Settings(assumed_dtype="float16")).findings
    assert [(f.code, f.line - HEAD.count("\n"), f.severity) for f in findings] == expected


#: A norm in which another branch, which the installed torch excludes, calls a method.
EXCLUDED_CALL = """\
import torch

try:
    from torch.nn.functional import rms_norm
except ImportError:
    FAST = False
else:
    FAST = True

class Norm(torch.nn.Module):
    def forward(self, x):
        if FAST:
            return rms_norm(x, self.shape, self.weight)
        return self._normalize({given})

    def _normalize(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
"""


@pytest.mark.parametrize(("given", "expected"), [("x.float()", []), ("x", [("AMP507", 17)])])
def test_a_private_method_whose_callers_convert_its_argument_gets_no_low_precision(
    given: str, expected: list[tuple[str, int]]
) -> None:
    assert [(code, line) for code, line, _ in said(EXCLUDED_CALL.replace("{given}", given), "float16")] == expected


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("t = torch.arange(8) if len(x) else x; return torch.einsum('i,j->ij', t, self.inv_freq)", [7]),
        ("return torch.outer(x, self.inv_freq)", [7]),
        ("return x[:, None] @ self.inv_freq[None]", [7]),
        # A cast of the model has rounded the buffer in line 4.
        ("return torch.outer(position_ids.float(), self.inv_freq.float())", [4]),
        ("return torch.outer(torch.arange(len(x)).float(), self.inv_freq)", [4]),
        ("return position_ids[:, None] * self.inv_freq.float()", [4]),
        ("return torch.outer(position_ids.float(), 10000 ** -(torch.arange(0, len(x), 2).float() / len(x)))", []),
        # A region multiplies float32 matrices in low precision as well.
        ("return x[:, None].float() @ self.inv_freq.float()[None]", [4, 7]),
        ("with torch.autocast('cuda', enabled=False): return x[:, None].float() @ self.inv_freq.float()[None]", [4]),
        ("return x @ self.weight", []),
    ],
)
def test_a_caller_gives_the_positions_of_a_rotary_embedding(body: str, lines: list[int]) -> None:
    found = said(ROTARY.format(body), "bfloat16")
    assert [(code, line) for code, line, _ in found] == [("AMP509", line) for line in lines]


ROTARY_CLASS = """\
class Rotary({base}):
    def __init__(self, dim=32):
        super().__init__()
        self.frequencies = 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim)

    @torch.no_grad()
    def forward(self, x, position_ids):
        inv_freq = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        with torch.autocast(x.device.type, enabled=False):
            angles = (inv_freq @ position_ids[:, None, :].float()).transpose(1, 2)
        {statement}
"""


@pytest.mark.parametrize("base", ["nn.Module", "LlamaRotaryEmbedding"])
@pytest.mark.parametrize(
    ("statement", "lines"),
    [
        ("return angles.to(x.dtype)", [11]),
        ("return torch.cat((angles, angles), dim=-1).to(dtype=x.dtype)[None]", [11]),
        ("angles = angles.type_as(x); return angles.cos(), angles.sin()", [11]),
        ("return (position_ids[:, None] * self.frequencies).to(x)", [11]),
        ("return angles.cos().to(x.dtype), angles.sin().to(x.dtype)", []),
        ("return angles", []),
        ("return (x * self.frequencies).to(x)", []),
    ],
)
def test_angles_are_cast_before_their_sine_and_cosine(base: str, statement: str, lines: list[int]) -> None:
    body = "from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding\n\n"
    body += ROTARY_CLASS.format(base=base, statement=statement)
    assert [(code, line - 2) for code, line, _ in said(body, "bfloat16")] == [("AMP509", line) for line in lines]


@pytest.mark.parametrize(
    ("exponent", "found"),
    [
        ("torch.arange(0, dim, 2).float().half() / dim", True),
        ("torch.arange(0, dim, 2, dtype=torch.bfloat16) / dim", True),
        ("torch.arange(0, dim, 2).half().float() / dim", False),
        ("torch.arange(0, dim, 2).float() / dim", False),
        ("torch.arange(0, 64, 2).half() / 64", False),
        ("2.0 ** torch.arange(dim, dtype=x.dtype)", False),
    ],
)
def test_the_exponent_of_frequencies_is_rounded(exponent: str, found: bool) -> None:
    body = f"def frequencies(dim, x: torch.Tensor):\n    return 1.0 / 10000 ** ({exponent})\n"
    assert [(code, line) for code, line, _ in said(body, "bfloat16")] == ([("AMP509", 2)] if found else [])


@pytest.mark.parametrize(
    ("region", "statement", "lines"),
    [
        ("enabled=False", "freqs = freqs[-x.shape[1]:].to(x)", [3]),
        ("enabled=False", "dtype = x.dtype", []),
        ("enabled=True, dtype=torch.float32", "freqs = freqs[-x.shape[1]:].to(x)", [3]),
    ],
)
def test_a_disabled_region_casts_no_angles(region: str, statement: str, lines: list[int]) -> None:
    body = (
        f"@torch.autocast('cuda', {region})\ndef rotate(freqs, x):\n    {statement}\n"
        "    return x * freqs.cos() + turn(x) * freqs.sin()\n"
    )
    assert [(code, line) for code, line, _ in said(body, "bfloat16")] == [("AMP509", line) for line in lines]


SQUARES = "(x ** 2).sum(1, keepdim=True) + (y * y).sum(1)"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"return {SQUARES} - 2 * x @ y.t()", True),
        (f"return {SQUARES} - 2 * torch.matmul(x, y.t())", True),
        ("inner = -2 * x.mm(y.T); return x.pow(2).sum(1, keepdim=True) + inner", True),
        ("inner = -2 * x.mm(y.T); return -(x ** 2).sum(1, keepdim=True) - inner", True),
        ("n = x.norm(dim=1, keepdim=True); return n * n - 2 * torch.einsum('id,jd->ij', x, y)", True),
        (f"d = {SQUARES}; d.addmm_(1, -2, x, y.t()); return d", True),
        (f"d = {SQUARES}; d.addmm_(x, y.t(), beta=1, alpha=-2); return d", True),
        ("x, y = x.float(), y.float(); return (x ** 2).sum(1, keepdim=True) - 2 * x @ y.t()", False),
        ("return torch.cdist(x, y)", False),
        ("return (x ** 2).sum(1, keepdim=True) - x @ y.t()", False),
        ("return 2 - 2 * x @ y.t()", False),
        ("d = x @ y.t(); d.addmm_(x, y.t(), beta=1, alpha=-2); return d", False),
    ],
)
def test_squared_distances_from_a_low_precision_product(body: str, found: bool) -> None:
    source = f"def distances(x: torch.Tensor, y: torch.Tensor):\n    {body}\n"
    assert [(code, severity) for code, _, severity in said(source, "bfloat16")] == (
        [("AMP507", "info")] if found else []
    )


def test_a_product_in_a_region_is_low_beside_squares_in_float32() -> None:
    source = f"with torch.autocast('cuda', dtype=torch.bfloat16):\n    d = {SQUARES} - 2 * x @ y.t()\n"
    findings = check_source(HEAD + source, "train.py", Settings())
    assert [finding.code for finding in findings] == ["AMP507"]


@pytest.mark.parametrize(
    ("update", "found"),
    [
        ("mean.mul_(d).add_(x, alpha=1 - d)", True),
        ("mean.data.mul_(d).add_(x, alpha=(1 - d))", True),
        ("mean.mul_(1 - d).add_(x * d)", True),
        ("mean.mul_(0.99).add_(x, alpha=0.01)", True),
        ("mean.mul_(d).addcmul_(x, x, value=1 - d)", True),
        ("mean.lerp_(x, 1 - d)", True),
        ("mean.lerp_(x, 0.5)", False),
        ("mean.mul_(2).add_(x)", False),
        ("mean.add_(x, alpha=1 - d)", False),
        ("wide = mean.float(); wide.lerp_(x.float(), 1 - d); mean.copy_(wide)", False),
    ],
)
def test_a_moving_average_that_a_caller_keeps(update: str, found: bool) -> None:
    body = f"def update(mean: torch.Tensor, x: torch.Tensor, d: float):\n    {update}\n"
    assert said(body, "bfloat16") == ([("AMP508", 2, "warning")] if found else [])
    # Without the option nothing says that the tensor is low.
    assert said(body) == []


@pytest.mark.parametrize(
    ("kept", "found"),
    [("self.register_buffer('size', torch.zeros(8))", True), ("self.size = torch.zeros(8)", False)],
)
def test_a_moving_average_in_a_buffer(kept: str, found: bool) -> None:
    init = f"    def __init__(self):\n        super().__init__()\n        {kept}\n"
    body = forward("self.size.mul_(0.99).add_(x.sum(0), alpha=0.01)", "return x", more=init)
    assert [code for code, _, _ in said(body, "bfloat16")] == (["AMP508"] if found else [])


ACCUMULATES = """\
def gradient(x: torch.Tensor, weight: torch.Tensor, n):
    total = {start}
    for i in range(n):
        part = x[i * 8:(i + 1) * 8]
        logits = F.linear(part, weight)
        {add}
    return total
"""


@pytest.mark.parametrize(
    ("start", "add", "found"),
    [
        ("torch.zeros_like(weight)", "total += logits.t() @ part", True),
        ("torch.zeros_like(weight) if weight is not None else None", "total += logits.t() @ part", True),
        ("torch.zeros_like(weight)", "torch.addmm(total, logits.t(), part, out=total)", True),
        ("torch.zeros_like(weight)", "torch.add(input=total, other=logits.t() @ part, out=total)", True),
        ("torch.zeros_like(weight)", "total.addmm_(logits.t(), part)", True),
        ("torch.zeros_like(weight, dtype=torch.float32)", "total += logits.t() @ part", False),
        ("torch.zeros_like(weight)", "torch.addmm(total, logits.t(), part, out=other)", False),
        ("torch.zeros_like(weight)", "total.addmm_(logits.t(), part, beta=0)", False),
    ],
)
def test_a_gradient_summed_over_chunks(start: str, add: str, found: bool) -> None:
    body = ACCUMULATES.format(start=start, add=add)
    assert [code for code, _, _ in said(body, "bfloat16")] == (["AMP508"] if found else [])


FUNCTION = """class Linear(torch.autograd.Function):
    {decorators[0]}@staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        {result}

    {decorators[1]}@staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        {gradient}
"""
AMP_PAIR = ("@torch.amp.custom_fwd(device_type='cuda')\n    ", "@torch.amp.custom_bwd(device_type='cuda')\n    ")


@pytest.mark.parametrize(
    ("result", "gradient", "decorators", "found"),
    [
        ("return F.linear(x, weight)", "return grad @ weight, grad.t() @ x", ("", ""), True),
        ("return F.linear(x.to(weight.dtype), weight)", "return grad @ weight, grad.t() @ x", ("", ""), True),
        ("return F.linear(x, weight)", "return grad @ weight, grad.t() @ x", AMP_PAIR, False),
        ("return F.linear(x, weight).to(x.dtype)", "return grad @ weight, grad.t() @ x", ("", ""), False),
        ("y = F.linear(x, weight).float(); return y", "return grad @ weight, grad.t() @ x", ("", ""), False),
        ("return F.linear(x, weight)", "grad = grad.to(x.dtype); return grad @ weight, grad.t() @ x", ("", ""), False),
        ("return x * weight", "return grad * weight, grad * x", ("", ""), False),
    ],
)
def test_a_caller_applies_a_function_under_autocast(
    result: str, gradient: str, decorators: tuple[str, str], found: bool
) -> None:
    body = FUNCTION.format(result=result, gradient=gradient, decorators=decorators)
    assert [code for code, _, _ in said(body, "bfloat16")] == (["AMP107"] if found else [])
    assert said(body) == []


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("self.head(x).numpy()", True),
        ("torch.sigmoid(self.head(x)).detach().cpu().permute(0, 2, 3, 1).numpy()", True),
        ("x.cpu().numpy()", True),
        ("self.head(x).float().cpu().numpy()", False),
        ("self.head(x).argmax(-1).numpy()", False),
        ("len(x)", False),
    ],
)
def test_numpy_has_no_bfloat16(expression: str, found: bool) -> None:
    init = "    def __init__(self):\n        super().__init__()\n        self.head = nn.Conv2d(3, 3, 3)\n"
    body = forward(f"return {expression}", more=init)
    assert said(body, "bfloat16") == ([("AMP108", 6, "warning")] if found else [])
    assert said(body, "float16") == said(body) == []


@pytest.mark.parametrize(
    "context", ["maybe_autocast(device_type=x.device.type, enabled=False)", "no_autocast(x)", "no_autocast()"]
)
def test_an_unknown_context_may_disable_the_region_of_the_caller(tmp_path: Path, context: str) -> None:
    (tmp_path / "precision.py").write_text("from elsewhere import maybe_autocast, no_autocast\n")
    body = (
        "from precision import maybe_autocast, no_autocast\n\nclass Rotary(nn.Module):\n"
        "    def forward(self, x, position_ids):\n"
        "        self.table = x.to(self.inv_freq.dtype)\n"
        f"        with {context}:\n"
        "            freqs = self.inv_freq.float()[:, None] @ position_ids[None].float()\n"
        "        return freqs.cos(), freqs.sin()\n"
    )
    assert found_in(tmp_path, REGION, body) == []
    plain = body.replace(f"with {context}", "if True")
    assert found_in(tmp_path, REGION, plain) == [("AMP509", 7, "info")]


ROTATED = "def rotate(freqs: torch.Tensor, x: torch.Tensor):\n    {}\n    return x * {}.cos() + x * {}.sin()\n"


@pytest.mark.parametrize(
    ("before", "angles", "found"),
    [
        ("freqs = freqs[-8:].to(x)", "freqs", [("AMP509", 2)]),
        ("pass", "freqs", [("AMP509", 3)]),
        ("freqs = freqs.float()", "freqs", []),
        ("freqs = freqs.to(torch.float32)", "freqs", []),
    ],
)
def test_angles_of_which_sine_and_cosine_are_taken(before: str, angles: str, found: list[tuple[str, int]]) -> None:
    body = ROTATED.format(before, angles, angles)
    assert [(code, line) for code, line, _ in said(body, "bfloat16")] == found
    # Without the option nothing says that the angles are low.
    assert said(body) == []


def test_positions_from_an_unknown_function_are_not_taken_for_low(tmp_path: Path) -> None:
    body = ROTARY.format("t = torch.arange(len(x), dtype=self.inv_freq.dtype); return torch.outer({}, self.inv_freq)")
    assert found_in(tmp_path, LOADS, body.format("wrap(t, self.inv_freq)")) == []
    (known,) = found_in(tmp_path, LOADS, body.format("t"))
    assert known[0] == "AMP509"


def test_a_sine_alone_is_no_rotation() -> None:
    assert said(forward("return x.sin() + self.scale.cos()"), "bfloat16") == []


def test_angles_that_the_code_itself_casts() -> None:
    region = "with torch.autocast('cuda', dtype=torch.bfloat16):\n    y = model(x)\n"
    body = f"{region}freqs = torch.rand(8).to(torch.bfloat16)\nc, s = freqs.cos(), freqs.sin()\n"
    assert [(f.code, f.line) for f in check_source(HEAD + body) if f.code == "AMP509"] == [
        ("AMP509", HEAD.count("\n") + 3)
    ]


NORMS = """\
class Clip(torch.optim.Optimizer):
    def clip(self, params: list, p: float):
        return {}

"""


@pytest.mark.parametrize(
    ("norm", "found"),
    [
        ("torch.norm(torch.stack([torch.norm(q.grad.detach(), p) for q in params]), p)", True),
        ("sum(q.grad.norm(2) ** 2 for q in params if q.grad is not None)", True),
        ("torch.nn.utils.get_total_norm([q.grad for q in params], p)", True),
        ("sum(torch.linalg.vector_norm(q.grad) ** 2 for q in params)", True),
        ("sum(torch.norm(q.grad, p, dtype=torch.float32) ** 2 for q in params)", False),
        ("sum(q.grad.float().norm(2) ** 2 for q in params)", False),
        ("sum(q.norm(2) ** 2 for q in params) if params[0].grad is None else torch.zeros(1)", False),
    ],
)
def test_norms_of_gradients(norm: str, found: bool) -> None:
    body = NORMS.format(norm)
    assert {code for code, _, _ in said(body, "float16")} == ({"AMP507"} if found else set())
    assert said(body) == []


@pytest.mark.parametrize(
    ("total", "found"),
    [("torch.zeros_like(x)", True), ("torch.zeros_like(x, dtype=torch.float32)", False)],
)
def test_outputs_that_are_added_by_index(total: str, found: bool) -> None:
    body = forward(
        f"total = {total}",
        "for i in self.experts:",
        "    part = F.linear(x[i], self.weight[i])",
        "    total.index_add_(0, i, part.to(total.dtype))",
        "return total",
    )
    assert [code for code, _, _ in said(body, "bfloat16")] == (["AMP508"] if found else [])


def test_an_unknown_factor_widens_nothing() -> None:
    var = "var = torch.sum({} * x ** 2, dim=2) - torch.sum({} * x, dim=2) ** 2"
    body = forward("alpha = F.softmax(self.layers[0](x), dim=-1)", var.format("alpha", "alpha"), "return {}")
    std = "torch.sqrt(var.clamp(min=1e-10))"
    assert [code for code, _, _ in said(body.format(std), "float16")] == ["AMP507", "AMP505"]
    assert said(forward(f"var = {'x.float().var(1)'}", f"return {std}"), "float16") == []


@pytest.mark.parametrize(
    ("call", "dtype", "found"),
    [
        ("F.softmax(scores, dim=-1, dtype=query.dtype)", "bfloat16", True),
        ("scores.softmax(-1, dtype=query.dtype)", "float16", True),
        ("F.log_softmax(scores, dim=-1, dtype=query.dtype)", "bfloat16", True),
        ("F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)", "bfloat16", False),
        ("F.softmax(scores, dim=-1)", "bfloat16", True),
        ("F.dropout(scores.softmax(-1), 0.1)", "bfloat16", True),
        ("scores.float().softmax(-1).to(query.dtype)", "bfloat16", False),
    ],
)
def test_the_dtype_of_a_softmax(call: str, dtype: str, found: bool) -> None:
    body = f"def attend(query: torch.Tensor, key, value):\n    scores = query @ key.mT\n    return {call} @ value\n"
    assert said(body, dtype) == ([("AMP507", 3, "info")] if found else [])


@pytest.mark.parametrize(
    ("statement", "low"),
    [
        ("x = x.float() if x.dtype == torch.float16 else x", ["bfloat16"]),
        ("x = x.to(torch.float32) if x.dtype is torch.half else x", ["bfloat16"]),
        ("x = x if x.dtype != torch.bfloat16 else x.float()", ["float16"]),
        ("x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x", []),
        ("x = x.float() if x.dtype in [torch.float16] else x", ["bfloat16"]),
        ("x = x.float() if x.dtype not in (torch.float32, torch.float64) else x", []),
        ("x = x if x.dtype == torch.float32 else x.float()", []),
        ("half = x.dtype == torch.float16; x = x.float() if half else x", ["bfloat16"]),
        ("dtype = x.dtype; x = x.float(); x = x if dtype == torch.bfloat16 else x.to(dtype)", ["float16"]),
        ("x = x.float() if self.training else x", []),
    ],
)
def test_the_assumed_dtype_decides_what_asks_for_it(statement: str, low: list[str]) -> None:
    body = forward(statement, "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)")
    assert [dtype for dtype in ("bfloat16", "float16") if said(body, dtype)] == low


@pytest.mark.parametrize(
    ("product", "found"),
    [
        ("torch.softmax(q @ k.mT, -1, dtype=torch.float32) @ v", True),
        ("torch.matmul((q @ k.mT).float().softmax(-1), v)", True),
        ("torch.bmm(mask.float(), v)", True),
        ('torch.einsum("i,ij->ij", torch.arange(10).float(), v)', True),
        ("torch.softmax(q @ k.mT, -1, dtype=torch.float32).to(v.dtype) @ v", False),
        ("(q @ k.mT).float().softmax(-1).type_as(v) @ v", False),
        ("torch.bmm(mask.float(), v.float())", False),
        ("mask.float() * v", False),
    ],
)
def test_a_product_of_a_received_tensor_and_a_float32_tensor_raises(product: str, found: bool) -> None:
    body = f"def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor):\n    return {product}\n"
    clashes = [line for code, line, _ in said(body, "bfloat16") if code == "AMP108"]
    assert clashes == ([2] if found else [])
    assert said(body) == []


@pytest.mark.parametrize("use", ["weights.argmax(-1)", "(weights > 0.5)", "weights.log()", "weights.topk(5)"])
def test_probabilities_that_weight_nothing_may_be_rounded(use: str) -> None:
    body = f"def attend(scores: torch.Tensor):\n    weights = torch.softmax(scores, -1)\n    return {use}\n"
    assert 2 not in [line for _, line, _ in said(body, "bfloat16")]


@pytest.mark.parametrize(
    ("test", "value", "found"),
    [
        ("isinstance(value, torch.Tensor)", "value.detach().cpu().numpy()", True),
        ("torch.is_tensor(value)", "value.detach().cpu().numpy()", True),
        ("isinstance(value, (torch.Tensor, float))", "value.numpy()", True),
        ("isinstance(value, torch.Tensor)", "value.detach().float().numpy()", False),
        ("isinstance(value, Image)", "value.numpy()", False),
    ],
)
def test_a_parameter_that_is_tested_for_a_tensor(test: str, value: str, found: bool) -> None:
    body = f"def log(name: str, value: Loggable):\n    if {test}:\n        value = {value}\n    torch.log_api(value)\n"
    assert [(code, line) for code, line, _ in said(body, "bfloat16")] == ([("AMP108", 3)] if found else [])


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("(mask * 1.0).masked_fill(mask.bool(), -1e9).to(x.dtype)", True),
        ('mask.float().masked_fill(mask.bool(), float("-1e9")).half()', True),
        ("((1.0 - mask) * -100000.0)[:, None].to(x.dtype)", True),
        ("((1.0 - mask.float()) * -1e9).to(layer(x).dtype)", True),
        ("((1.0 - mask) * -10000.0).to(x.dtype)", False),
        ('mask.float().masked_fill(mask.bool(), float("-inf")).to(x.dtype)', False),
        ("((1.0 - mask) * -1e9).float()", False),
        ("((1.0 - mask) * 1e9).to(x.dtype)", False),
    ],
)
def test_a_mask_is_cast_after_its_fill(mask: str, found: bool) -> None:
    body = f"def masked(x: torch.Tensor, mask, layer):\n    return x + {mask}\n"
    assert said(body, "float16") == ([("AMP506", 2, "warning")] if found else [])
    assert said(body, "bfloat16") == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("timestep = t.expand(len(latents)).to(latents.dtype)", True),
        ("timesteps = (sigma * 1000).to(dtype)", True),
        ("latents = model(latents, timestep=t.to(latents.dtype))", True),
        ("batch_timesteps = t.repeat(2).type_as(latents)", True),
        ("timestep = t.expand(len(latents)).to(torch.float32)", False),
        ("timestep = t.expand(len(latents)).to(latents.device)", False),
        ("noise = t.expand(len(latents)).to(latents.dtype)", False),
    ],
)
def test_timesteps_are_cast(statement: str, found: bool) -> None:
    body = f"def sample(model, latents, t, sigma, dtype):\n    with torch.no_grad():\n        {statement}\n"
    assert said(body, "bfloat16") == ([("AMP509", 3, "info")] if found else [])
    assert said(body, "float16") == []


@pytest.mark.parametrize(
    ("grid", "found"),
    [
        ("coordinates.half()", True),
        ("coordinates.to(x.dtype)", True),
        ("coordinates", False),
        ("coordinates * 2", False),
    ],
)
def test_an_image_is_sampled_at_coordinates_that_are_cast(grid: str, found: bool) -> None:
    body = (
        "def warp(x: torch.Tensor, h):\n"
        "    line = torch.linspace(-1, 1, h)\n"
        "    coordinates = torch.stack(torch.meshgrid(line, line), dim=-1)[None].float()\n"
        f"    return F.grid_sample(x, {grid}, align_corners=False)\n"
    )
    assert [(code, line) for code, line, _ in said(body, "bfloat16")] == ([("AMP509", 4)] if found else [])


DECODED = """\
class Pipeline(DiffusionPipeline):
    def images(self, latents, tokenizer):
        image = self.vae.decode(latents / self.scale).sample
        image = (image / 2 + 0.5).clamp(0, 1)
        {}


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 8)

    def training_step(self, batch, index):
        given, wanted = batch
        predicted = self.net(given)
        {}
        return F.mse_loss(predicted, wanted)
"""


@pytest.mark.parametrize(
    ("decoded", "logged", "lines"),
    [
        ("return image.cpu().permute(0, 2, 3, 1).numpy()", "show(predicted[0].data.cpu().numpy())", [5, 16]),
        ("return image.cpu().float().numpy()", "show(predicted.detach().float().cpu().numpy())", []),
        ("return tokenizer.decode(latents.ids.cpu().numpy())", "show(index.numpy())", []),
    ],
)
def test_numpy_gets_what_models_compute(decoded: str, logged: str, lines: list[int]) -> None:
    body = "import lightning\nfrom diffusers import DiffusionPipeline\n\n" + DECODED.format(decoded, logged)
    assert [(code, line - 3) for code, line, _ in said(body, "bfloat16")] == [("AMP108", line) for line in lines]
    assert said(body, "float16") == said(body) == []


@pytest.mark.parametrize(
    ("write", "found"),
    [
        ("out.index_add_(0, index, self.layer(x))", True),
        ("out.scatter_add_(0, index, self.layer(x))", True),
        ("out[x > 0] = self.layer(x)", True),
        ("out.index_add_(0, index, self.layer(x).float())", False),
        ("out[0] = self.layer(x)", False),
    ],
)
def test_a_float32_tensor_gets_low_elements(write: str, found: bool) -> None:
    body = (
        "class Scatter(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layer = nn.Linear(8, 8)\n\n    def forward(self, x, index):\n"
        f"        out = torch.zeros(len(x), 8)\n        {write}\n        return out\n"
    )
    assert [(code, line) for code, line, _ in said(body, "bfloat16")] == ([("AMP108", 8)] if found else [])
    assert said(body) == []


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("torch.linalg.solve(eye - self.skew(), eye + self.skew())", True),
        ("(eye - self.skew()).inverse()", True),
        ("torch.fft.fft2(self.spectrum[name]).real", True),
        ("torch.fft.ifft2(self.spectrum[name]).real", False),
        ("self.rigids[name].inverse()", False),
        ("torch.linalg.solve((eye - self.skew()).float(), eye)", False),
        ("(eye - self.skew()).float().inverse()", False),
        ("self.flow.inverse(eye)", False),
        ("self.flow.solve(eye)", False),
    ],
)
def test_an_op_without_a_kernel_gets_a_tensor_of_unknown_dtype(call: str, found: bool) -> None:
    body = (
        "class Orthogonal(nn.Module):\n    def weight(self, name):\n        eye = identity(self.size)\n"
        f"        return {call}\n"
    )
    assert said(body, "bfloat16") == ([("AMP510", 4, "info")] if found else [])
    assert said(body) == []


HELPER = """\
def stable(t, dim=-1):
    return F.softmax(t - t.amax(dim, keepdim=True), dim=dim)


class Attention(nn.Module):
    def forward(self, q, k, v):
        return stable({scores})


"""


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        ("q @ k.mT", True),
        ("similarity(q, k)", True),
        ("similarity(q, k).float()", False),
        ("(q @ k.mT).float()", False),
    ],
)
def test_a_helper_that_gets_values_of_unknown_dtype_is_looked_at_by_itself(scores: str, found: bool) -> None:
    assert [line for code, line, _ in said(HELPER.format(scores=scores), "bfloat16")] == ([2] if found else [])


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ("q, k", True),
        ("k, v", True),
        ("x, k", False),
        ("q, k: torch.Tensor", True),
        ("x, k: Float['b i j']", False),
    ],
)
def test_k_beside_queries_or_values_holds_keys(parameters: str, found: bool) -> None:
    body = f"def pool({parameters}):\n    return 2 * torch.softmax(k, -1)\n"
    assert bool(said(body, "bfloat16")) is found


def test_a_shape_in_an_annotation_of_floats_is_a_tensor() -> None:
    body = "def pool(scores: Float['b i j']):\n    return torch.softmax(scores, -1)\n"
    assert [line for code, line, _ in said(body, "bfloat16")] == [2]
    assert said(body.replace("Float", "Int"), "bfloat16") == []


TRAINING_OF_ROTARY = """\
import torch

import rotary


def train(name, loader):
    model = getattr(rotary, name)()
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x, y).mean()
        loss.backward()
        optimizer.step()
"""


def test_angles_that_a_region_makes_low_are_so_where_it_is_entered(tmp_path: Path) -> None:
    """The product is low whatever dtype the inputs have."""
    angles = 'freqs = torch.einsum("i,j->ij", torch.arange(len(x)).type_as(self.inv_freq), self.inv_freq)'
    body = ROTARY.format(f"{angles}; return freqs").replace("model = Rotary().to(torch.bfloat16)\n", "")
    (tmp_path / "rotary.py").write_text(HEAD + body)
    (tmp_path / "train.py").write_text(TRAINING_OF_ROTARY)
    (finding,) = (each for each in check_paths([str(tmp_path)]).findings if each.code == "AMP509")
    assert finding.condition == "if `Rotary.forward` is called in a `torch.autocast` region"


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("return torch.fft.rfft(x, dim=-1)", "AMP510"),
        ("return torch.fft.irfft(torch.fft.rfft(x) * torch.conj(torch.fft.rfft(x)))", "AMP510"),
        ("return torch.fft.rfft(x.float(), dim=-1)", ""),
        # Its inputs are complex, which no region makes of float16.
        ("return torch.fft.fft(torch.conj(x))", ""),
        ("return torch.fft.fft2(torch.view_as_complex(x))", ""),
        ("return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real", "AMP510"),
        # A waveform is an input of the model.
        ("return torch.stft(x, 512, return_complex=True)", ""),
        ("return -torch.log(torch.sigmoid(x)).mean()", "AMP507"),
        ("return -x.sigmoid().log().mean()", "AMP507"),
        ("return -nn.functional.logsigmoid(x).mean()", ""),
        ("return -torch.log(torch.sigmoid(x.float())).mean()", ""),
    ],
)
def test_transforms_and_logarithms_of_sigmoids_in_a_region(tmp_path: Path, statement: str, code: str) -> None:
    assert {(each, severity) for each, _, severity in found_in(tmp_path, REGION, forward(statement))} == (
        {(code, "info")} if code else set()
    )
    assert found_in(tmp_path, "import torch\ny = model(x)\n", forward(statement)) == []
