"""Messages of the catalogue that only CUDA raises, or raises with other text: recognized, and explained in a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_amp_check import record
from pytest_amp_check.protocol.messages import find_messages

pytestmark = pytest.mark.usefixtures("patched_once")

#: Message -> a program that raises it on CUDA, with the text of its explanation.
PROGRAMS = {
    "fft-of-half": (
        """
layer = torch.nn.Linear(4, 6, device="cuda")
with torch.autocast("cuda", dtype=torch.float16):
    hidden = layer(torch.randn(8, 4, device="cuda"))
    torch.fft.rfft(hidden)  # blamed
""",
        "`torch.fft.rfft` gets `hidden` in float16",
    ),
    "matrix-dtypes": (
        """
layer = torch.nn.Linear(4, 4, device="cuda")
half = torch.randn(4, 4, device="cuda").half()
layer(half)  # blamed
""",
        "`layer` runs outside autocast on `half` in float16 and `layer.weight` in float32",
    ),
    "input-and-weight-types": (
        """
layer = torch.nn.Conv2d(1, 1, 1, device="cuda").half()
image = torch.randn(1, 1, 4, 4, device="cuda")
layer(image)  # blamed
""",
        "`layer` gets `image` in float32 and `layer.weight` in float16",
    ),
    "not-implemented-for-half": (
        """
half = torch.eye(4, device="cuda").half()
torch.linalg.svd(half)  # blamed
""",
        "`torch.linalg.svd` has no kernel for float16, the dtype of `half`",
    ),
    "bce-unsafe": (
        """
p = torch.rand(4, device="cuda")
with torch.autocast("cuda"):
    torch.nn.functional.binary_cross_entropy(p, p)  # blamed
""",
        "binary_cross_entropy",
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_message_of_cuda_is_explained(name: str, tmp_path: Path) -> None:
    body, words = PROGRAMS[name]
    source = f"import torch\n{body}"
    path = tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    line = next(number for number, text in enumerate(source.splitlines(), 1) if text.endswith("# blamed"))
    with pytest.raises(RuntimeError) as caught, record() as run:
        exec(compile(source, str(path), "exec"), {})  # noqa: S102 - our own programs
    assert run.failure is None
    assert [message.name for message in find_messages(str(caught.value))] == [name]
    (finding,) = run.findings
    assert finding.line == line
    assert words in finding.message
    assert torch.cuda.is_available()
