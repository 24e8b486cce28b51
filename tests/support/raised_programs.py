"""Small programs that torch ends with an exception, each with the line of the cause and text of the expected finding.

``message`` is the name of torch's message in the catalogue. ``says`` holds texts that the finding's message must
contain in this order. A mark ``# AMPnnn`` stands on the line to fix. Programs with ``emulated`` run as on CUDA.
"""

from __future__ import annotations

from typing import NamedTuple

SETUP = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
x, y = torch.randn(8, 4), torch.randn(8, 1)


def loss_of(x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        return F.mse_loss(model(x), y)


"""


class Program(NamedTuple):
    message: str
    name: str
    body: str
    says: tuple[str, ...]
    emulated: bool = False

    @property
    def source(self) -> str:
        return SETUP + self.body


PROGRAMS = (
    # A scaler that finds no gradient.
    Program(
        "no-inf-checks",
        "a loss that is made of numbers",
        """
def loss_of_numbers(output):
    values = [o.item() for o in output]
    return torch.tensor(values, requires_grad=True).mean()  # AMP810

scaler.scale(loss_of_numbers(model(x))).backward()
scaler.step(optimizer)
""",
        ("`torch.tensor` creates a new leaf", "parameters of `optimizer`", "compute the loss from the model's output"),
    ),
    Program(
        "no-inf-checks",
        "a criterion that makes its output ask for a gradient",
        """
class Criterion(nn.Module):
    def forward(self, output, y):
        hits = (output.detach() - y).abs().mean()
        return hits.requires_grad_()  # AMP810

criterion = Criterion()
optimizer.zero_grad()
loss = criterion(model(x), y)
scaled = scaler.scale(loss)
scaled.backward()
scaler.step(optimizer)
""",
        ("creates a new leaf", "`optimizer`"),
    ),
    Program(
        "no-inf-checks",
        "a batch that adds nothing to the loss",
        """
for turn in range(3):
    optimizer.zero_grad()
    total = torch.zeros((), requires_grad=True)  # AMP810
    known = torch.full((8,), turn != 2)
    if known.any():
        total = total + loss_of(x[known], y[known])
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        ("`total` is still its initial tensor in this batch", "skip backward, step and update"),
    ),
    Program(
        "no-inf-checks",
        "a loss whose requires_grad is set",
        """
loss = (model(x).argmax(dim=1) == 0).float().mean()
loss.requires_grad = True  # AMP810
scaler.scale(loss).backward()
scaler.step(optimizer)
""",
        ("`loss.requires_grad` creates a new leaf of the graph", "`optimizer`"),
    ),
    Program(
        "no-inf-checks",
        "gradients that are set to None where nobody looks",
        """
scaler.scale(loss_of(x, y)).backward()
for p in model.parameters():
    torch._C.TensorBase._grad.__set__(p, None)
scaler.step(optimizer)  # AMP215
""",
        ("are cleared between backward and `scaler.step(optimizer)`",),
    ),
    Program(
        "no-inf-checks",
        "another optimizer's parameters",
        """
critic = nn.Linear(4, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
scaler.scale(critic(x).mean()).backward()
scaler.step(optimizer)  # AMP810
""",
        ("reaches the parameters of", "but not of `optimizer`"),
    ),
    Program(
        "no-inf-checks",
        "a generator whose output was detached",
        """
critic = nn.Linear(1, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
fake = model(x).detach()
scaler.scale(critic(fake).mean()).backward()
scaler.step(critic_optimizer)
critic_optimizer.zero_grad()
score = critic(fake).mean()
scaler.scale(score).backward()
scaler.step(optimizer)  # AMP810
""",
        (
            "`score` reaches the parameters of `critic_optimizer` but not of `optimizer`",
            "as `model(x).detach()` (line 20) leaves the graph",
        ),
    ),
    Program(
        "no-inf-checks",
        "a model that was made after the optimizer",
        """
first = nn.Linear(4, 1)
other = torch.optim.SGD(first.parameters(), lr=0.01)  # AMP810
second = nn.Linear(4, 1)
scaler.scale(second(x).mean()).backward()
scaler.step(other)
""",
        ("reaches `second.weight`, `second.bias`, which `other` does not hold", "create the optimizer from"),
    ),
    Program(
        "no-inf-checks",
        "frozen parameters",
        """
head = nn.Linear(1, 1)
model.requires_grad_(False)
scaler.scale(head(model(x)).mean()).backward()
scaler.step(optimizer)  # AMP810
""",
        ("None of the 4 parameters of `optimizer` has `requires_grad`",),
    ),
    Program(
        "no-inf-checks",
        "gradients that are cleared before they are unscaled",
        """
optimizer.zero_grad()
scaler.scale(loss_of(x, y)).backward()
optimizer.zero_grad()  # AMP215
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
""",
        ("cleared between backward and `scaler.step(optimizer)`", "move this statement to after the step"),
    ),
    Program(
        "no-inf-checks",
        "no backward pass",
        """
for turn in range(2):
    optimizer.zero_grad()
    loss = loss_of(x, y)
    if turn == 0:
        scaler.scale(loss).backward()
    scaler.step(optimizer)  # AMP810
    scaler.update()
""",
        ("is reached without a backward pass since the last step of `optimizer`",),
    ),
    Program(
        "no-inf-checks",
        "gradients that are cleared before the step",
        """
scaler.scale(loss_of(x, y)).backward()
optimizer.zero_grad()  # AMP215
scaler.step(optimizer)
""",
        ("are cleared between backward and `scaler.step(optimizer)`",),
    ),
    Program(
        "no-inf-checks-before-update",
        "an update where nothing was stepped",
        """
scaler.scale(loss_of(x, y)).backward()
scaler.update()  # AMP207
""",
        ("`scaler.update()`",),
    ),
    # Scaler methods called out of order.
    Program(
        "unscaled-twice",
        "gradients that are unscaled twice",
        """
scaler.scale(loss_of(x, y)).backward()
scaler.unscale_(optimizer)
scaler.unscale_(optimizer)  # AMP209
scaler.step(optimizer)
""",
        ("twice",),
    ),
    Program(
        "unscaled-twice",
        "unscaling in each micro-batch",
        """
for i in range(4):
    scaler.scale(loss_of(x, y) / 2).backward()
    scaler.unscale_(optimizer)  # AMP303
    if i % 2:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        ("before the accumulation window is complete",),
    ),
    Program(
        "stepped-twice",
        "a missing update",
        """
for _ in range(2):
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)  # AMP206
""",
        ("update",),
    ),
    Program(
        "unscaled-after-step",
        "unscaling after the step",
        """
scaler.scale(loss_of(x, y)).backward()
scaler.step(optimizer)
scaler.unscale_(optimizer)  # AMP209
""",
        ("`scaler.unscale_",),
    ),
    Program(
        "scale-is-none",
        "a loss that nobody scales",
        """
loss_of(x, y).backward()  # AMP203
scaler.unscale_(optimizer)
""",
        ("is not scaled, but",),
    ),
    Program(
        "closure-with-scaler",
        "a closure",
        """
scaler.scale(loss_of(x, y)).backward()
scaler.step(optimizer, closure=lambda: loss_of(x, y))  # AMP211
""",
        ("closure",),
    ),
    Program(
        "empty-scaler-state",
        "the state of a scaler that was off",
        """
scaler.load_state_dict(torch.amp.GradScaler("cpu", enabled=False).state_dict())  # AMP810
""",
        ("`scaler.load_state_dict` loads an empty state", "the scaler that saved it was disabled"),
    ),
    Program(
        "not-an-optimizer",
        "a method of an optimizer with two passes",
        """
class TwoPasses(torch.optim.SGD):
    def first_step(self):
        pass

optimizer = TwoPasses(model.parameters(), lr=0.01)
scaler.scale(loss_of(x, y)).backward()
scaler.step(optimizer.first_step)  # AMP810
""",
        ("`optimizer.first_step` is a method of it", "`scaler.unscale_(optimizer)`", "`optimizer.first_step()` itself"),
    ),
    Program(
        "not-an-optimizer",
        "a list of optimizers",
        """
scaler.scale(loss_of(x, y)).backward()
scaler.unscale_([optimizer])  # AMP810
""",
        ("`scaler.unscale_` takes an optimizer, but `[optimizer]` is a list",),
    ),
    Program(
        "device-not-there",
        "a scaler for another device",
        """
scaler = torch.amp.GradScaler("cuda")  # AMP810
model = model.to("mps")
""",
        ("creates a scaler for cuda, but the program runs on mps",),
        True,
    ),
    Program(
        "device-not-there",
        "a scaler for another device that depends on the dtype",
        """
dtype = "bfloat16" if torch.cuda.is_available() else "float16"
off = torch.cuda.amp.GradScaler(enabled=False)
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))  # AMP810
model = model.to("mps")
""",
        ("`torch.cuda.amp.GradScaler` creates a scaler for cuda, but the program runs on mps",),
        True,
    ),
    Program(
        "device-not-there",
        "a scaler for another device than the one that torch was not built for",
        """
scaler = torch.amp.GradScaler("cuda")  # AMP810
model = model.to("xpu")
""",
        ("creates a scaler for cuda, but the program runs on xpu",),
        True,
    ),
    Program(
        "device-not-there",
        "the device of the scaler itself is not there",
        """
scaler = torch.amp.GradScaler("xpu")
model = model.to("xpu")  # AMP810
""",
        ("`model.to` raised torch's", "`amp-check explain device-not-there`"),
    ),
    # Parameters of low precision.
    Program(
        "unscale-float16-gradients",
        "a model that is cast",
        """
model = model.half()  # AMP501
scaler.scale(model(x.half()).mean()).backward()
scaler.unscale_(optimizer)
""",
        ("`model.half` stores trained parameters in float16", "refuses to unscale"),
    ),
    Program(
        "unscale-float16-gradients",
        "a layer that is made in float16",
        """
net = nn.Sequential(nn.Linear(4, 4), nn.PReLU(4, dtype=torch.float16))  # AMP501
trained = torch.optim.SGD(net.parameters(), lr=0.1)
with torch.autocast("cpu", dtype=torch.float16):
    loss = net(x).mean()
scaler.scale(loss).backward()
scaler.step(trained)
""",
        ("`PReLU` is created with trained parameters in float16",),
    ),
    Program(
        "unscale-float16-gradients",
        "a default dtype",
        """
torch.set_default_dtype(torch.float16)  # AMP501
try:
    net = nn.Linear(4, 1)
finally:
    torch.set_default_dtype(torch.float32)
trained = torch.optim.SGD(net.parameters(), lr=0.1)
scaler.scale(net(x.half()).mean()).backward()
scaler.step(trained)
""",
        ("`torch.set_default_dtype` makes float16 the dtype of trained parameters",),
    ),
    Program(
        "unscale-float16-gradients",
        "a parameter whose data is replaced",
        """
model[2].weight.data = model[2].weight.data.half()  # AMP501
with torch.autocast("cpu", dtype=torch.float16):
    loss = model(x).mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
""",
        ("`model[2].weight.data` stores trained parameters in float16",),
    ),
    # Operands of different dtypes.
    Program(
        "matrix-dtypes",
        "a head outside of the region",
        """
body, head = nn.Linear(4, 8), nn.Linear(8, 1)
with torch.autocast("cpu", dtype=torch.float16):
    hidden = body(x)
hidden = F.relu(hidden).abs()
output = head(hidden)  # AMP810
""",
        (
            "`head` runs outside autocast on `hidden` in float16 and `head.weight` in float32",
            "`hidden` comes from `body(x)`, which autocast runs in float16 (line 20)",
            "run it in the region",
        ),
    ),
    Program(
        "matrix-dtypes",
        "a model that is cast and given float32",
        """
model.half()
model(x)  # AMP810
""",
        (
            "`model.0` gets `x` in float32 and `model.0.weight` in float16",
            "brought to float16 in line 18",
            "keep the weights",
        ),
    ),
    Program(
        "matrix-dtypes",
        "a product by hand",
        """
with torch.autocast("cpu", dtype=torch.bfloat16):
    scores = torch.matmul(x, x.T)
mixed = scores @ x  # AMP810
""",
        ("`scores @ x` runs outside autocast on `scores` in bfloat16 and `x` in float32", "`torch.matmul(x, x.T)`"),
    ),
    Program(
        "expected-scalar-type",
        "class weights beside float16 logits",
        """
weights = torch.ones(8)
logits = torch.randn(8, 8).half()
loss = F.cross_entropy(logits, torch.arange(8), weight=weights)  # AMP810
""",
        ("`F.cross_entropy` runs outside autocast on `logits` in float16 and `weights` in float32",),
    ),
    Program(
        "input-and-weight-types",
        "a convolution that is cast",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 1)

    def forward(self, image):
        image = image / 255
        return self.stem(image)  # AMP810

net = Net().to(torch.bfloat16)
net(torch.rand(1, 1, 4, 4))
""",
        ("`self.stem` gets `image` in float32 and `self.stem.weight` in bfloat16", "in line 27"),
    ),
    Program(
        "input-and-weight-types",
        "a recurrent layer",
        """
rnn = nn.LSTM(4, 4).half()
sequence = torch.randn(2, 1, 4)
rnn(sequence)  # AMP810
""",
        ("`rnn` gets `sequence` in float32 and `rnn.weight_ih_l0` in float16",),
    ),
    Program(
        "found-dtype",
        "a loss of two dtypes",
        """
p = torch.rand(8, 1).half().requires_grad_()
target = torch.ones(8, 1)
loss = F.binary_cross_entropy(p, target)  # AMP810
loss.backward()
""",
        ("`F.binary_cross_entropy` runs outside autocast on `p` in float16 and `target` in float32",),
    ),
    Program(
        "write-dtypes",
        "a buffer that is filled by a mask",
        """
filled = torch.zeros(8, 8)
with torch.autocast("cpu", dtype=torch.float16):
    hidden = model[0](x)
    filled[hidden.sum(1) > 0] = hidden[hidden.sum(1) > 0]  # AMP810
""",
        (
            "gets `filled[hidden.sum(1) > 0]` in float32 and `hidden[hidden.sum(1) > 0]` in float16",
            "autocast does not cast",
            "`model[0](x)`",
        ),
    ),
    Program(
        "write-dtypes",
        "what autocast computes in float32, written by a mask",
        """
model.cuda()
with torch.autocast("cuda", dtype=torch.float16):
    score = model[0](x.cuda())
    out = torch.zeros_like(score)
    out[score[:, 0] > 0] = torch.log_softmax(score[score[:, 0] > 0], 1) * 2.0  # AMP810
""",
        (
            "in float16 and `torch.log_softmax(score[score[:, 0] > 0], 1) * 2.0` in float32, and autocast does not",
            "`model[0](x.cuda())`, which autocast runs in float16",
            "where autocast runs `torch.log_softmax` in float32",
        ),
        emulated=True,
    ),
    Program(
        "matrix-dtypes",
        "a layer that casts its input",
        """
class Head(nn.Linear):
    def forward(self, x):
        return super().forward(x.to(torch.float16)).to(torch.float32)  # AMP810

Head(8, 4)(x)
""",
        ("runs outside autocast on `x.to(torch.float16)` in float16 and `self.weight` in float32",),
    ),
    Program(
        "write-dtypes",
        "a sum by an index",
        """
with torch.autocast("cpu", dtype=torch.float16):
    hidden = model[0](x)
    sums = torch.zeros(2, 8)
    sums.index_add_(0, torch.zeros(8, dtype=torch.long), hidden)  # AMP810
""",
        ("`sums.index_add_` gets `sums` in float32 and `hidden` in float16", "`model[0](x)`"),
    ),
    Program(
        "attention-dtypes",
        "a norm of query and key",
        """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            q, k = self.norm(q), self.norm(k)
        return F.scaled_dot_product_attention(q, k, v)  # AMP810

Attention()(torch.randn(1, 2, 4))
""",
        (
            "`q` in float32, `k` in float32 and `v` in float16",
            "`v` comes from `self.qkv(x)`, which autocast runs in float16",
            "`q` comes from `self.norm(q)`, which autocast runs in float32",
        ),
        True,
    ),
    Program(
        "solver-dtypes",
        "a system of two dtypes",
        """
a, b = torch.eye(2), torch.ones(2).half()
torch.linalg.solve(a, b)  # AMP810
""",
        ("`torch.linalg.solve` runs outside autocast on `a` in float32 and `b` in float16",),
    ),
    Program(
        "result-type",
        "a counter that gets floating values",
        """
count = torch.zeros(2, dtype=torch.long)
count += torch.ones(2).half()  # AMP810
""",
        ("`count` holds int64, but floating values are written to it in place",),
    ),
    Program(
        "gradient-dtype",
        "gradients for master weights",
        """
master = nn.Parameter(torch.zeros(2))
master.grad = torch.zeros(2).half()  # AMP810
""",
        ("`master.grad`, the gradient of a tensor in float32, is set to `torch.zeros(2).half()` in float16",),
    ),
    Program(
        "optimizer-state-dtypes",
        "a state of another dtype",
        """
fused = torch.optim.Adam(model.parameters(), fused=True)
model(x).mean().backward()
fused.step()
for state in fused.state.values():
    state["exp_avg"] = state["exp_avg"].half()
fused.step()  # AMP810
""",
        ("`fused.step` finds `exp_avg` in float16 in its state for `model.0.weight` in float32",),
    ),
    Program(
        "numpy-of-bfloat16",
        "NumPy of bfloat16",
        """
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    hidden = model[0](x)
picture = hidden.numpy()  # AMP810
""",
        (
            "NumPy has no bfloat16, the dtype of `hidden`, as `hidden` comes from `model[0](x)`",
            "which autocast runs in bfloat16 (line 19)",
        ),
    ),
    Program(
        "expected-scalar-type",
        "an op that takes float32 alone",
        """
with torch.autocast("cpu", dtype=torch.float16):
    hidden = model[0](x)
    packed = torch.choose_qparams_optimized(hidden, 4, 2, 0.1, 8)  # AMP810
""",
        (
            "`torch.choose_qparams_optimized` takes float32, but gets `hidden` in float16",
            "`hidden` comes from `model[0](x)`, which autocast runs in float16 (line 19)",
            "custom_fwd",
        ),
    ),
    Program(
        "matrix-dtypes",
        "the backward of a function of the program's own",
        """
class Multiply(torch.autograd.Function):  # AMP810
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad.mm(weight.t()), x.t().mm(grad)

weight = torch.randn(4, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = Multiply.apply(x, weight)
out.sum().backward()
""",
        ("`grad.mm` in the backward of `Multiply` gets `grad` in bfloat16 and `weight.t()` in float32",),
    ),
    Program(
        "matrix-dtypes",
        "the forward of a function of the program's own, outside of the region",
        """
class Overlap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, prediction, target):
        return prediction.t().mm(target)  # AMP810

    @staticmethod
    def backward(ctx, grad):
        return grad, None

with torch.autocast("cpu", dtype=torch.bfloat16):
    prediction = model[0](x)
Overlap.apply(prediction, torch.randn(len(x), 4))
""",
        (
            "`prediction.t().mm` runs outside autocast on `prediction.t()` in bfloat16 and `target` in float32",
            "`prediction.t()` comes from `model[0](x)`",
            "run it in the region",
        ),
    ),
    Program(
        "matrix-dtypes",
        "a comprehension",
        """
heads = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])
with torch.autocast("cpu", dtype=torch.bfloat16):
    hidden = model[0](x)
outputs = [head(hidden) for head in heads]  # AMP810
""",
        ("`head` runs outside autocast on `hidden` in bfloat16 and `head.weight` in float32", "`model[0](x)`"),
    ),
    Program(
        "matrix-dtypes",
        "a comprehension over what nobody can say where it comes from",
        """
with torch.autocast("cpu", dtype=torch.bfloat16):
    halves = [model[0](x)]
outputs = [model[2](half) for half in halves]  # AMP810
""",
        ("`model[2]` runs outside autocast on `half` in bfloat16 and `model[2].weight` in float32: run it in",),
    ),
    Program(
        "custom-bwd-alone",
        "a Function whose backward alone is decorated",
        """
class Twice(torch.autograd.Function):
    @staticmethod  # AMP810
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return 2 * grad

Twice.apply(model(x)).sum().backward()
""",
        ("`Twice` has `custom_bwd`", "decorate its `forward`"),
    ),
    # Operations that low precision does not support.
    Program(
        "not-implemented-for-half",
        "a decomposition in a region, of an argument of a function",
        """
def rotation(covariance):
    u, _, v = torch.linalg.svd(covariance)  # AMP810
    return u @ v

def align(first, second):
    with torch.autocast("cuda", dtype=torch.float16):
        product = torch.matmul(first.T, second)
        return rotation(product.transpose(0, 1))

align(x, x)
""",
        (
            "`torch.linalg.svd` has no kernel for float16, the dtype of `covariance`",
            "`torch.matmul(first.T, second)`",
            "autocast runs in float16 (line 24)",
        ),
        True,
    ),
    Program(
        "not-implemented-for-half",
        "a decomposition in a module, of an input that a container has made",
        """
class Rotation(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[0]  # AMP810

model = nn.Sequential(nn.Linear(4, 4), Rotation()).cuda()
with torch.autocast("cuda", dtype=torch.float16):
    x = torch.randn(4, 4, device="cuda")
    model(x)
""",
        ("`torch.linalg.svd` has no kernel for float16, the dtype of `x`: compute it in float32",),
        True,
    ),
    Program(
        "matrix-dtypes",
        "an adapter of a low base without a region, behind a container",
        """
class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 2)

    def forward(self, x):
        return self.a(x)  # AMP810

model = nn.Sequential(nn.Embedding(8, 4).half(), Adapter())
ids = torch.zeros(2, 3, dtype=torch.long)
model(ids[:, :-1])
""",
        ("`self.a` runs outside autocast on `x` in float16 and `self.a.weight` in float32: run it in the region",),
        True,
    ),
    Program(
        "not-implemented-for-half",
        "an inverse",
        """
half = torch.eye(2).half()
torch.inverse(half)  # AMP810
""",
        ("`torch.inverse` has no kernel for float16, the dtype of `half`", "`torch.eye(2).half()`"),
    ),
    Program(
        "fft-of-half",
        "a transform in a region",
        """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 6)

    def forward(self, x):
        x = self.embed(x)
        return torch.fft.rfft(x, dim=1)  # AMP810

with torch.autocast("cuda", dtype=torch.float16):
    Block()(x)
""",
        ("`torch.fft.rfft` gets `x` in float16", "`x` comes from `self.embed(x)`", "(line 24)", "power-of-two lengths"),
        True,
    ),
    Program(
        "half-overflow",
        "a mask of attention",
        """
mask = torch.tensor([[True, False]] * 2)
with torch.autocast("cpu", dtype=torch.float16):
    scores = x[:2] @ x[:2].T
    scores = scores.masked_fill(mask, -1e9)  # AMP810
""",
        (
            "`scores.masked_fill` gets -1e+09",
            "`scores` is float16",
            "`x[:2] @ x[:2].T`, which autocast runs in float16",
        ),
    ),
    Program(
        "half-overflow",
        "a power of two in a model that was cast for inference",
        """
net = nn.Linear(8, 24).half().eval()
mask = torch.tril(torch.ones(4, 4))
with torch.no_grad():
    query, key, value = net(torch.randn(2, 4, 8).half()).chunk(3, -1)
    scores = query @ key.transpose(-1, -2)
    scores = scores.masked_fill(mask == 0, -(2**30))  # AMP810
""",
        ("`scores.masked_fill` gets -1.07374e+09", "`scores` comes from `query @ key.transpose(-1, -2)` (line"),
    ),
    Program(
        "half-overflow",
        "the least number of another dtype",
        """
scores = torch.randn(4, 4).half()
scores = scores.masked_fill(scores < 0, torch.finfo(torch.float32).min)  # AMP810
""",
        ("`scores.masked_fill` gets -3.40282e+38", "`scores` is float16"),
    ),
    Program(
        "bce-unsafe",
        "probabilities in a region",
        """
with torch.autocast("cuda", dtype=torch.float16):
    loss = F.binary_cross_entropy(torch.sigmoid(model(x)), y.sigmoid())  # AMP504
""",
        ("binary_cross_entropy",),
        True,
    ),
    # Forward and backward passes.
    Program(
        "anomaly-nan",
        "anomaly mode with a live scaler",
        """
torch.autograd.set_detect_anomaly(True)  # AMP213
try:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(x) * 0).sqrt().sum()
    scaler.scale(loss).backward()
finally:
    torch.autograd.set_detect_anomaly(False)
""",
        ("makes backward raise on the NaN of an overflow",),
    ),
    Program(
        "anomaly-nan",
        "anomaly mode without a scaler",
        """
with torch.autograd.detect_anomaly():
    norm = (model(x) * 0).sqrt()  # AMP810
    (norm * 0).sum().backward()
""",
        ("SqrtBackward0, the backward of this computation, gave NaN",),
    ),
    Program(
        "no-graph",
        "a loss that was taken out of the graph",
        """
loss = loss_of(x, y).detach()
scaler.scale(loss).backward()  # AMP810
""",
        ("`loss` has no graph, so", "backward` has nothing to differentiate"),
    ),
    Program(
        "nonfinite-norm",
        "a clip that raises",
        """
scaler.scale(loss_of(x, y) * float("inf")).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # AMP213
""",
        ("error_if_nonfinite",),
    ),
    Program(
        "invalid-probabilities",
        "probabilities that are NaN",
        """
torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)  # AMP810
""",
        ("`amp-check explain invalid-probabilities`",),
    ),
    Program(
        "checkpoint-metadata",
        "a part that is computed in another precision again",
        """
from torch.utils.checkpoint import checkpoint

low = True

def part(x):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        return model[0](x).exp()

output = checkpoint(part, x.requires_grad_(), use_reentrant=False)  # AMP810
low = False
output.sum().backward()
""",
        ("gave bfloat16 in the forward and float32 in the recomputation",),
    ),
    # Sharding.
    Program(
        "sharded-dtypes",
        "a module that was cast",
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

model[2].half()
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
model(x)  # AMP810
""",
        ("shards parameters in float32 and float16 together", "`model.2.weight`, `model.2.bias` have the latter"),
    ),
    Program(
        "sharded-dtypes",
        "a module that was cast, in FSDP1",
        """
from torch.distributed.fsdp import FullyShardedDataParallel

model[2].half()
FullyShardedDataParallel(model, device_id=torch.device("cpu"))  # AMP810
""",
        ("`FullyShardedDataParallel` shards parameters in float32 and float16 together",),
    ),
    Program(
        "mixed-sharded-gradients",
        "a head that is not sharded",
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

head = nn.Linear(1, 2)
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
both = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
scaler.scale(head(model(x)).mean()).backward()
scaler.step(both)  # AMP810
""",
        ("`head.weight`, `head.bias` of `both` are not sharded but its others are",),
    ),
)

#: Message -> a statement that emits the message as a warning, on a machine without CUDA if the message requires that.
WARNINGS = {
    "scaler-without-its-device": 'torch.amp.GradScaler("cuda")',
    "unsupported-autocast-dtype": 'torch.autocast("cpu", dtype=torch.float64)',
    "scheduler-before-optimizer": "torch.optim.lr_scheduler.StepLR(optimizer, 1).step()",
}
