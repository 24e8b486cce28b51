"""The option ``assume-precision`` outside of modules: integers, averages of weights, states, and ops without a kernel.

Each program marks the line of its finding. A program without a mark is right.
"""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"

INTEGERS = {
    "labels in the dtype of an image": """\
def label(image: torch.Tensor):
    n, _, h, w = image.shape
    out = torch.arange(1, n * h * w + 1, device=image.device, dtype=image.dtype)  # AMP509
    return F.max_pool2d(out.view(n, 1, h, w), 3, 1, 1)
""",
    "positions that are written into a tensor, and cast": """\
def ids(height, width, dtype):
    grid = torch.zeros(height, width, 2)
    grid[..., 0] = grid[..., 0] + torch.arange(height)[:, None]
    return grid.reshape(height * width, 2).to(dtype=dtype)  # AMP509
""",
    "positions that take the type of another tensor": """\
def warp(x: torch.Tensor):
    columns = torch.arange(0, x.shape[-1]).type_as(x)  # AMP509
    return columns * x
""",
    "a method of a class that is no module": """\
class Sampler:
    def sigmas(self, latents: torch.Tensor, count):
        order = torch.arange(count, dtype=latents.dtype)  # AMP509
        return order[None] * latents
""",
    "integers": "def f(x: torch.Tensor):\n    return torch.arange(x.shape[1], device=x.device)\n",
    "integers of the dtype of integers": (
        "def f(x: torch.Tensor, input_ids):\n    return torch.arange(x.shape[1], dtype=input_ids.dtype)\n"
    ),
    "float32": "def f(x: torch.Tensor):\n    return torch.arange(x.shape[1], dtype=torch.float32) * x\n",
    "few": "def f(x: torch.Tensor):\n    return torch.arange(256, dtype=x.dtype) * x\n",
    "exponents of frequencies": "def f(x: torch.Tensor, dim):\n    return x * torch.arange(0, dim, 2, dtype=x.dtype)\n",
    "exponents of two": "def f(x: torch.Tensor, n):\n    return x * 2.0 ** torch.arange(n, dtype=x.dtype)\n",
}

AVERAGES = {
    "a dictionary of weights": """\
class Average:
    def __init__(self, model):
        self.kept = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model, decay):
        for name, p in model.named_parameters():
            self.kept[name] = decay * self.kept[name] + (1 - decay) * p.data  # AMP508
""",
    "a list of weights, with the share first": """\
class Average:
    def update(self, share):
        for i, (kept, p) in enumerate(zip(self.kept, self.model.parameters())):
            self.kept[i] = (1 - share) * kept + p.detach() * share  # AMP508
""",
    "two models": """\
@torch.no_grad()
def follow(teacher, student, rate):
    for slow, fast in zip(teacher.parameters(), student.parameters()):
        slow.mul_(rate).add_(fast, alpha=1 - rate)  # AMP508
""",
    "a share of the distance": """\
@torch.no_grad()
def follow(shadow, model, share):
    for slow, p in zip(shadow, model.parameters()):
        slow.sub_(share * (slow - p))  # AMP508
""",
    "a copy of a weighted sum": """\
def follow(teacher, student, rate):
    for slow, fast in zip(teacher.parameters(), student.parameters()):
        slow.data.copy_(rate * slow.data + (1.0 - rate) * fast.data)  # AMP508
""",
    "a step between two numbers": """\
def follow(shadow, model):
    for slow, p in zip(shadow, model.parameters()):
        slow.lerp_(p, 0.001)  # AMP508
""",
    "a copy in float32": """\
class Average:
    def __init__(self, model):
        self.kept = {name: p.detach().float().clone() for name, p in model.named_parameters()}

    def update(self, model, decay):
        for name, p in model.named_parameters():
            self.kept[name] = decay * self.kept[name] + (1 - decay) * p.data
""",
    "weights that are widened": """\
def follow(shadow, model, rate):
    for slow, p in zip(shadow, model.parameters()):
        slow.mul_(rate).add_(p.float(), alpha=1 - rate)
""",
    "weights that decay": """\
def decay(model, rate):
    for p in model.parameters():
        p.mul_(1 - rate)
""",
    "a sum of other shares": """\
def mix(models, a, b):
    for one, p in zip(models, models[0].parameters()):
        one.copy_(a * one + b * p)
""",
}

STATES = {
    "an entry of a state": """\
class Client:
    def send(self, model):
        state = model.state_dict()
        for key in state:
            self.sent[key] = state[key].cpu().numpy()  # AMP108
""",
    "the difference of two states": """\
def change(before, after, key):
    old, new = before.state_dict(), after.state_dict()
    return (new[key] - old[key]).cpu().numpy()  # AMP108
""",
    "all entries": """\
def arrays(model):
    return {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}  # AMP108
""",
    "a weight of another object": """\
class Log:
    def norms(self):
        return self.coder.decoder.norm(dim=1).detach().cpu().numpy()  # AMP108
""",
    "... widened": """\
class Log:
    def norms(self):
        return self.coder.decoder.detach().float().norm(dim=1).cpu().numpy()
""",
    "widened": "def first(model, key):\n    return model.state_dict()[key].float().cpu().numpy()\n",
    "of an optimizer": "def first(optimizer, key):\n    return optimizer.state_dict()[key].numpy()\n",
    "of a schedule": "def first(lr_scheduler, key):\n    return lr_scheduler.state_dict()[key].numpy()\n",
    "samples of a data set": """\
class Views:
    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return self.load(i)

    def plot(self, sample: torch.Tensor):
        return torch.clamp(sample, 0, 1).numpy()
""",
    "a dictionary of samples": """\
class Plotter:
    def plot(self, sample: dict[str, torch.Tensor]):
        return torch.clamp(sample["image"], 0, 1).numpy()
""",
}

KERNELS = {
    "complex numbers of pairs": """\
class Rotation(nn.Module):
    def forward(self, x, rotations):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))  # AMP510
        return torch.view_as_real(pairs * rotations)
""",
    "... widened first": """\
class Rotation(nn.Module):
    def forward(self, x, rotations):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * rotations)
""",
    "a spectrum": """\
class Spectrum(nn.Module):
    def forward(self, x):
        return torch.stft(x, 512, return_complex=True)  # AMP510
""",
    "... with a window in float32": """\
class Spectrum(nn.Module):
    def forward(self, x):
        return torch.stft(x, 512, window=torch.hann_window(512, dtype=torch.float32), return_complex=True)
""",
    "a loss by the name of its argument, in a class of its own": """\
class Backend:
    @staticmethod
    def loss(logits, targets, lengths, sizes):
        raw = logits.raw
        return F.ctc_loss(log_probs=raw, targets=targets, input_lengths=lengths, target_lengths=sizes)  # AMP510
""",
    "... widened": """\
class Backend:
    @staticmethod
    def loss(logits, targets, lengths, sizes):
        return F.ctc_loss(log_probs=logits.raw.float(), targets=targets, input_lengths=lengths, target_lengths=sizes)
""",
    "a decomposition in an optimizer": """\
class Spectral(torch.optim.Optimizer):
    @staticmethod
    def basis(a, b):
        return torch.linalg.qr(a @ b)  # AMP510
""",
    "... of a float32 product": """\
class Spectral(torch.optim.Optimizer):
    @staticmethod
    def basis(a, b):
        return torch.linalg.qr((a @ b).float())
""",
    "angles of unknown dtype": """\
def turn(table):
    angles = table.angles
    return torch.polar(torch.ones_like(angles), angles)
""",
}

OTHERS = {
    "timesteps of a pipeline": """\
class Pipeline:
    def __call__(self, latents=None):
        for t in self.scheduler.timesteps:
            timestep = t.expand(latents.shape[0]).to(latents.dtype)  # AMP509
            latents = self.step(latents, timestep)
        return latents
""",
    "a model that is called with names alone": """\
class Task:
    def loss(self, batch, model: nn.Module):
        logits = model(input_ids=batch["ids"]).logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), batch["labels"].view(-1))  # AMP507
""",
    "... widened": """\
class Task:
    def loss(self, batch, model: nn.Module):
        logits = model(input_ids=batch["ids"]).logits.float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), batch["labels"].view(-1))
""",
    "a loss of probabilities in a region that casts nothing": """\
class Depth(nn.Module):
    def loss(self, labels, depths):
        seen = labels.max(dim=1).values > 0
        with torch.autocast("cuda", enabled=False):
            return F.binary_cross_entropy(depths[seen], labels[seen])  # AMP507
""",
    "... of values that are widened": """\
class Depth(nn.Module):
    def loss(self, labels, depths):
        seen = labels.max(dim=1).values > 0
        with torch.autocast("cuda", enabled=False):
            return F.binary_cross_entropy(depths[seen].float(), labels[seen])
""",
    "variance and mean in one call": """\
class Norm(nn.Module):
    def forward(self, x):
        var, mean = torch.var_mean(x, dim=-1, keepdim=True)  # AMP507
        return (x - mean) / (var + 1e-5).sqrt()
""",
    "... of float32": """\
class Norm(nn.Module):
    def forward(self, x):
        x = x.float()
        var, mean = torch.var_mean(x, dim=-1, keepdim=True)
        return (x - mean) / (var + 1e-5).sqrt()
""",
    "frequencies that another function computes": """\
class Rotary(nn.Module):
    def __init__(self, config, compute):
        super().__init__()
        inv_freq, self.factor = compute(config)
        self.register_buffer("inv_freq", inv_freq, persistent=False)  # AMP509

    def forward(self, length):
        phases = torch.outer(torch.arange(length, dtype=torch.float32), self.inv_freq.float())
        return phases.cos(), phases.sin()
""",
    "float16 for values in bfloat16": """\
class Experts(nn.Module):
    def forward(self, x, index):
        y = torch.empty_like(x, dtype=torch.float16)  # AMP507
        for i, expert in enumerate(self.experts):
            y[index == i] = expert(x[index == i]).to(y.dtype)
        return y
""",
    "... where the code tests the dtype": """\
class Experts(nn.Module):
    def forward(self, x, index):
        y = torch.empty_like(x, dtype=torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float16)
        return y.copy_(x)
""",
    "a buffer in float32 beside the output of a layer": """\
class Margin(nn.Module):
    def __init__(self, classes, size):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, size))
        self.register_buffer("t", torch.zeros(1))

    def forward(self, features, targets):
        cosine = F.linear(F.normalize(features), F.normalize(self.weight))
        mask = cosine > 0.5
        hard = cosine[mask]
        cosine[mask] = hard * (self.t + hard)  # AMP108
        return cosine
""",
    "... that is cast": """\
class Margin(nn.Module):
    def __init__(self, classes, size):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, size))
        self.register_buffer("t", torch.zeros(1))

    def forward(self, features, targets):
        cosine = F.linear(F.normalize(features), F.normalize(self.weight))
        mask = cosine > 0.5
        hard = cosine[mask]
        cosine[mask] = hard * (self.t + hard).to(hard.dtype)
        return cosine
""",
}
TABLES = {"integers": INTEGERS, "averages": AVERAGES, "states": STATES, "kernels": KERNELS, "others": OTHERS}
ROWS = [(f"{table}: {name}", body) for table, rows in TABLES.items() for name, body in rows.items()]


@pytest.mark.parametrize("body", [body for _, body in ROWS], ids=[name for name, _ in ROWS])
def test_what_the_option_assumes(body: str) -> None:
    findings = check_source(HEAD + body, "train.py", Settings(assumed_dtype="bfloat16"))
    assert places(findings) == marks(HEAD + body), shown(findings)
    assert not any(finding.certain for finding in findings)


@pytest.mark.parametrize("body", [body for _, body in ROWS], ids=[name for name, _ in ROWS])
def test_without_the_option_nothing_is_assumed(body: str) -> None:
    assert check_source(HEAD + body, "train.py") == []


MASKED = """\
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask, floor):
        scores = self.query(x)
        BODY
        return scores
"""
#: The statements that fill scores: those that write a number beyond the range of float16, and right ones.
OVERFLOWING = (
    "scores = scores.masked_fill(mask, -1e9)",
    "scores.masked_fill_(mask, value=-1e9)",
    "scores = torch.masked_fill(scores, mask, -1e9)",
    "scores = torch.masked_fill(scores, mask, value=-1e9)",
    "scores = torch.masked_fill(input=scores, mask=mask, value=-1e9)",
    "scores.fill_(-1e9)",
    "scores = scores.masked_fill(mask, float('-1e9'))",
    "scores = scores.masked_fill(mask, -1000000000)",
    "scores[mask] = -1e9",
    "x[mask] = -1e9",
    "floor.half().masked_fill_(mask, -1e9)",
)
HELD = (
    "scores = scores.masked_fill(mask, float('-inf'))",
    "scores = scores.masked_fill(mask, float('x'))",
    "scores = scores.masked_fill(mask, -6e4)",
    "scores = scores.masked_fill(mask, floor)",
    "scores = scores.masked_fill(mask, value=floor)",
    "scores.masked_fill_()",
    "torch.masked_fill()",
    "scores[mask] = -6e4",
    "scores[mask] = floor",
    "scores[mask] = 'text'",
    "scores.add_(-1e9)",
    "scores = scores.float().masked_fill(mask, -1e9)",
)
#: The statements that cast a bias to float16: those of a bias with a number beyond its range, and right ones.
CASTS = (
    "bias = mask.float().masked_fill(mask, -1e9); scores = scores + bias.half()",
    "bias = mask.float().masked_fill(mask, value=float('-1e9')); scores = scores + bias.half()",
    "bias = mask.float().masked_fill(mask, -1e9); scores = scores + bias.to(scores.dtype)",
    "bias = torch.zeros(4).masked_fill(mask, -1e9); scores = scores + bias.half()",
    "bias = (1.0 - mask.float()) * -1e9; scores = scores + bias.half()",
    "bias = -1e9 * (1.0 - mask.float()); scores = scores + bias.to(torch.float16)",
    "bias = (1.0 - mask.float()) * float('-1e9'); scores = scores + bias.half()",
)
CAST_AND_HELD = (
    "bias = mask.float().masked_fill(mask, -1e9); scores = scores + bias.bfloat16()",
    "bias = mask.float().masked_fill(mask, -6e4); scores = scores + bias.half()",
    "bias = mask.float().masked_fill(mask, float('-inf')); scores = scores + bias.half()",
    "bias = mask.float().masked_fill(mask, floor); scores = scores + bias.half()",
    "bias = mask.float().masked_fill(mask); scores = scores + bias.half()",
    "bias = 1e9 * (1.0 - mask.float()); scores = scores + bias.half()",
    "bias = (1.0 - mask.float()) + -1e9; scores = scores + bias.half()",
    "bias = (1.0 - mask.float()) * -6e4; scores = scores + bias.half()",
    "bias = mask.float().masked_fill(mask, -1e9); scores = scores + bias",
)


def found_fills(body: str, assumed_dtype: str = "float16") -> list[tuple[str, int, str]]:
    """Return label, line in the body and named number of each AMP506."""
    program = HEAD + MASKED.replace("BODY", body.replace("; ", "\n        "))
    first = program[: program.index(body.partition(";")[0])].count("\n")
    findings = check_source(program, "model.py", Settings(assumed_dtype=assumed_dtype))
    numbers = ("-1e+09", "1e+09")
    return [
        (finding.label, finding.line - first, next((each for each in numbers if each in finding.message), ""))
        for finding in findings
        if finding.code == "AMP506"
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        *((body, [("fill:overflow", 1, "-1e+09")]) for body in OVERFLOWING),
        *((body, [("fill:cast", 2, "-1e+09")]) for body in CASTS),
        *((body, []) for body in (*HELD, *CAST_AND_HELD)),
    ],
)
def test_numbers_that_are_written_into_what_may_be_float16(body: str, expected: list[tuple[str, int, str]]) -> None:
    assert found_fills(body) == expected


@pytest.mark.parametrize("body", [*OVERFLOWING[:-1], *CASTS])
def test_bfloat16_holds_the_numbers_that_float16_does_not(body: str) -> None:
    assert found_fills(body, "bfloat16") == []


def test_averages_are_distinguished_from_other_sums() -> None:
    bodies = [body for body in AVERAGES.values() if "# AMP508" in body]
    assert bodies
    for body in bodies:
        (finding,) = check_source(HEAD + body, "train.py", Settings(assumed_dtype="bfloat16"))
        assert "keeps a moving average in bfloat16, where small updates round to nothing" in finding.message


@pytest.mark.parametrize(
    ("expression", "label"),
    [
        ("x.square().mean(-1, keepdim=True) ** 0.5", "fragile:statistics"),
        ("x * x.pow(2).mean(-1, keepdim=True) ** -0.5", "fragile:statistics"),
        ("x.square().mean(-1, keepdim=True).sqrt()", "fragile:statistics"),
        # No root, and no mean of squares.
        ("x.square().mean(-1, keepdim=True) ** 1.5", ""),
        ("x.square().mean(-1, keepdim=True) ** 2", ""),
        ("x.mean(-1, keepdim=True) ** 0.5", ""),
        ("x.float().softmax(-1).bfloat16().topk(2)", "fragile:ranking"),
        ("torch.topk(x.float().softmax(-1).to(torch.bfloat16), 2)", "fragile:ranking"),
        ("x.float().sigmoid().bfloat16().topk(2)", "fragile:ranking"),
        # No probabilities, and no cast of them to a low dtype.
        ("x.float().tanh().bfloat16().topk(2)", ""),
        ("torch.topk((x.float() * 2).bfloat16(), 2)", ""),
        ("x.float().softmax(-1).topk(2)", ""),
    ],
)
def test_roots_of_statistics_and_ranks_of_probabilities(expression: str, label: str) -> None:
    body = f"def f(x: torch.Tensor):\n    return {expression}\n"
    findings = check_source(HEAD + body, "train.py", Settings(assumed_dtype="bfloat16"))
    assert [finding.label for finding in findings] == [label] * bool(label)


@pytest.mark.parametrize(
    ("expression", "is_low"),
    [
        ("torch.arange(n, dtype=x.dtype)", True),
        ("torch.arange(n, dtype=dtype)", True),
        ("torch.arange(n, dtype=param_dtype)", True),
        ("torch.arange(0, n, dtype=x.dtype)", True),
        ("torch.arange(n).to(x.dtype)", True),
        ("torch.arange(0, n).view(-1)[None].to(x.dtype)", True),
        ("torch.arange(n, dtype=torch.float16)", True),
        ("torch.arange(n, dtype=torch.bfloat16)", True),
        # Other dtypes, names that speak of no dtype, and dtypes of integers.
        ("torch.arange(n, dtype=torch.float32)", False),
        ("torch.arange(n, dtype=torch.int64)", False),
        ("torch.arange(n, dtype=kind)", False),
        ("torch.arange(n, dtype=mask.dtype)", False),
        ("torch.arange(n, dtype=input_ids.dtype)", False),
        # Exponents, and numbers between zero and one.
        ("2 ** torch.arange(n, dtype=x.dtype)", False),
        ("torch.arange(n, dtype=x.dtype) ** 2", True),
        ("torch.arange(0, n, 2, dtype=x.dtype)", False),
        ("torch.arange(0, n, 2).view(-1).to(x.dtype)", False),
        ("torch.linspace(0, 1, n, dtype=x.dtype)", False),
    ],
)
def test_consecutive_integers_in_the_dtype_of_the_option(expression: str, is_low: bool) -> None:
    body = f"def f(x: torch.Tensor, n, dtype, param_dtype, kind, mask, input_ids):\n    return {expression}\n"
    findings = check_source(HEAD + body, "train.py", Settings(assumed_dtype="bfloat16"))
    assert [finding.label for finding in findings] == ["positions:numbers"] * is_low
