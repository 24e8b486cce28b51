"""Models of the benchmark parts: small models of twelve kinds, and models of any size for memory estimates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of torch's users know
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Twelve kinds.


class Attention(nn.Module):
    """Self-attention over (batch, length, width), by torch's kernel or explicitly with a float32 softmax."""

    def __init__(self, width: int, heads: int, *, written_out: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)
        self.heads = heads
        self.written_out, self.causal = written_out, causal

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.inner(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.written_out:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            mixed = scores.softmax(-1).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.outer(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A transformer block, whose activations may be recomputed in the backward pass."""

    def __init__(
        self, width: int, heads: int, *, written_out: bool = False, causal: bool = False, recomputed: bool = False
    ) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, written_out=written_out, causal=causal)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.recomputed = recomputed

    def forward(self, x: Tensor) -> Tensor:
        if self.recomputed:
            result: Tensor = checkpoint(self._forward, x, use_reentrant=False)
            return result
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.outer(F.gelu(self.inner(self.between(x))))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM or a GRU over (batch, length, width), and a head on its last output."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int, classes: int) -> None:
        super().__init__()
        self.recurrent = kind(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Convolutions down and up again, with skip connections, over images of three channels."""

    def __init__(self, width: int, depth: int = 2) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(4, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skips = []
        for layer in self.down:
            skips.append(x)
            x = F.silu(layer(x))
        for layer, norm, skip in zip(reversed(self.up), reversed(self.norms), reversed(skips), strict=True):
            x = norm(layer(x) + skip)
        return self.head(x)  # type: ignore[no-any-return]


class Bag(nn.Module):
    """Means of embeddings, and a classifier on them."""

    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x))  # type: ignore[no-any-return]


class _Scaled(torch.autograd.Function):
    """A matrix product with a custom backward, which autocast leaves in the dtype of the forward."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.mm(weight)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        # As mm returns them under autocast: in the dtype of the incoming gradient.
        return grad.mm(weight.t().to(grad.dtype)), x.t().to(grad.dtype).mm(grad)


class Custom(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / math.sqrt(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(_Scaled.apply(x, self.weight)))  # type: ignore[no-any-return, no-untyped-call]


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for inner, outer in ((3, 8), (8, 16)):
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 4 * 4, 10))


def encoder(*, written_out: bool = False, recomputed: bool = False) -> nn.Module:
    blocks = (Block(32, 4, written_out=written_out, recomputed=recomputed) for _ in range(2))
    return nn.Sequential(nn.Linear(16, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 10))


def torch_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(nn.Linear(16, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


# The data and the losses. All data is created on the CPU, to be the same on every device.


def classified(model: nn.Module, batch: Tensor) -> Tensor:
    """Return a cross entropy against classes that are computed from the batch itself."""
    logits = model(batch)
    flat = batch.float().flatten(1)
    targets = (flat[:, 0] > flat[:, 1]).long()
    while logits.dim() > 2:
        logits = logits.mean(1)
    return F.cross_entropy(logits, targets)


def restored(model: nn.Module, batch: Tensor) -> Tensor:
    """Return a mean square error against the batch itself."""
    return F.mse_loss(model(batch).float(), batch)


def _normal(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(shape, generator=generator)


def _words(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(50, shape, generator=generator)


class Kind(NamedTuple):
    """A model with batch, loss, and optimizer."""

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Tensor]
    loss: Callable[[nn.Module, Tensor], Tensor]
    optimizer: str
    compiled: bool = False


KINDS = {
    "MLP": Kind(
        lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 10)), _normal(16, 16), classified, "SGD loop"
    ),
    "CNN with BatchNorm": Kind(cnn, _normal(8, 3, 16, 16), classified, "SGD foreach"),
    "transformer": Kind(torch_encoder, _normal(4, 8, 16), classified, "AdamW fused"),
    "attention of torch": Kind(encoder, _normal(4, 8, 16), classified, "AdamW foreach"),
    "attention written out": Kind(lambda: encoder(written_out=True), _normal(4, 8, 16), classified, "AdamW loop"),
    "LSTM": Kind(lambda: Recurrent(nn.LSTM, 16, 10), _normal(8, 6, 16), classified, "SGD fused"),
    "GRU": Kind(lambda: Recurrent(nn.GRU, 16, 10), _normal(8, 6, 16), classified, "AdamW foreach"),
    "UNet": Kind(lambda: UNet(8), _normal(2, 3, 16, 16), restored, "AdamW fused"),
    "embedding bag": Kind(lambda: Bag(50, 16, 10), _words(16, 6), classified, "AdamW loop"),
    "custom Function": Kind(lambda: Custom(16, 10), _normal(16, 16), classified, "SGD foreach"),
    "checkpointed blocks": Kind(lambda: encoder(recomputed=True), _normal(4, 8, 16), classified, "AdamW fused"),
    "compiled": Kind(
        lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 10)),
        _normal(16, 16),
        classified,
        "AdamW foreach",
        compiled=True,
    ),
}


def optimizer(name: str, parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Create an optimizer from a name such as "AdamW fused": its class, and "loop", "foreach" or "fused"."""
    kind, _, way = name.partition(" ")
    chosen: type[Any] = getattr(torch.optim, kind)
    made: torch.optim.Optimizer = chosen(parameters, lr=lr, foreach=way == "foreach", fused=way == "fused")
    return made


# Models of any size.


class Decoder(nn.Module):
    """A language model like GPT-2: learned positions, blocks, a head that shares its weights with the embedding."""

    def __init__(
        self, words: int, length: int, width: int, depth: int, heads: int, *, recomputed: bool = False
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True, recomputed=recomputed) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits.flatten(0, 1), x.flatten())


class Vision(nn.Module):
    """A classifier like ViT: patches, blocks, a class token."""

    def __init__(self, size: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (size // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        logits = self.head(self.norm(self.blocks(x))[:, 0])
        return F.cross_entropy(logits, torch.zeros(x.shape[0], dtype=torch.long, device=x.device))


class _Bottleneck(nn.Module):
    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = 4 * width
        self.convolutions = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        same = stride == 1 and inner == outer
        self.beside = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convolutions(x) + self.beside(x), inplace=True)


class Residual(nn.Module):
    """A classifier like ResNet-50, with bottlenecks in stages of given depths."""

    def __init__(self, depths: tuple[int, ...], width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        inner = width
        for stage, depth in enumerate(depths):
            for number in range(depth):
                layers.append(_Bottleneck(inner, width * 2**stage, 2 if stage and not number else 1))
                inner = 4 * width * 2**stage
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), torch.zeros(x.shape[0], dtype=torch.long, device=x.device))


class Restoring(nn.Module):
    """A UNet with a reconstruction loss."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = UNet(width, depth)

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.net(x).float(), x)


class Encoder(nn.Module):
    """Torch's own transformer encoder, with dropout in its attention, and a regression loss."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).float().square().mean()  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """Layers of one width, with a reconstruction loss."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x).float(), x)
