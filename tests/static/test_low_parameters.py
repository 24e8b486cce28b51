"""Parameters created in low precision, and the optimizers that train them."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch import nn
from transformers import AutoModel, Trainer, TrainingArguments
"""
LOOP = """
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
SCALER
for x, y in loader:
    loss = loss_fn(model(x), y)
    BACKWARD
    STEP
    opt.zero_grad()
"""
TRAINED = """
args = TrainingArguments(output_dir="out", fp16=FP16)
Trainer(model=model, args=args).train()
"""


def found(source: str) -> list[tuple[int, str]]:
    return [(f.line - HEAD.count("\n"), f.severity) for f in check_source(HEAD + source) if f.code == "AMP501"]


def in_a_loop(made: str, *, scaled: bool = False) -> list[tuple[int, str]]:
    loop = LOOP.replace("SCALER", "scaler = torch.amp.GradScaler()" if scaled else "")
    loop = loop.replace("BACKWARD", "scaler.scale(loss).backward()" if scaled else "loss.backward()")
    return found(made + loop.replace("STEP", "scaler.step(opt); scaler.update()" if scaled else "opt.step()"))


WARNED = [(1, "warning")]


IN_A_FUNCTION = """
def load(path):
    return AutoModel.from_pretrained(path, torch_dtype=torch.float16)

def main(path):
    args = TrainingArguments("out"OPTION)
    model = load(path)
    ADAPTED
    Trainer(model=model, args=args).train()

if __name__ == "__main__":
    main("base")
"""


@pytest.mark.parametrize(
    ("option", "adapted", "expected"),
    [
        ("", "", [(3, "warning")]),
        (", fp16=True", "", [(3, "error")]),
        (", deepspeed='zero2.json'", "", []),
        (", fp16=True", "get_peft_model(model, LoraConfig())", []),
        (", fp16=True", "model = get_peft_model(model, LoraConfig())", []),
    ],
)
def test_a_trainer_in_a_function(option: str, adapted: str, expected: list[tuple[int, str]]) -> None:
    assert found(IN_A_FUNCTION.replace("OPTION", option).replace("ADAPTED", adapted or "pass")) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("model = nn.Linear(8, 8, dtype=torch.bfloat16)", WARNED),
        ("model = nn.Sequential(nn.Linear(8, 8), nn.PReLU(8, dtype=torch.half))", WARNED),
        ("model = nn.Linear(8, 8, dtype=torch.float32)", []),
        ("model = nn.Linear(8, 8, dtype=dtype)", []),
        ("model = AutoModel.from_pretrained('x', torch_dtype=torch.float16)", WARNED),
        ("model = AutoModel.from_pretrained('x', dtype='bfloat16')", WARNED),
        ("model = AutoModel.from_pretrained('x', torch_dtype=torch.float16).to('cuda')", WARNED),
        ("model = AutoModel.from_pretrained('x').half()", WARNED),
        ("model = AutoModel.from_pretrained('x').to('cuda', torch.bfloat16)", WARNED),
        ("model = AutoModel.from_pretrained('x').to('cuda')", []),
        ("model = AutoModel.from_pretrained('x', load_in_8bit=True, torch_dtype=torch.float16)", []),
        ("model = AutoModel.from_pretrained('x', torch_dtype=torch.float16)\nmodel.requires_grad_(False)", []),
        # The adapters get the dtype of the weights.
        ("model = AutoModel.from_pretrained('x', torch_dtype=torch.float16)\nmodel.add_adapter(c)", [(2, "warning")]),
        ("model = AutoModel.from_pretrained('x', torch_dtype=torch.bfloat16)\nmodel.add_adapter(c)", []),
    ],
)
def test_what_a_loop_trains(made: str, expected: list[tuple[int, str]]) -> None:
    assert in_a_loop(made) == expected


def test_a_scaler_refuses_the_gradients_of_float16_alone() -> None:
    layers = "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(8, dtype=torch.{}))"
    assert in_a_loop(layers.format("float16"), scaled=True) == [(1, "error")]
    assert in_a_loop(layers.format("bfloat16"), scaled=True) == WARNED


@pytest.mark.parametrize(
    ("made", "fp16", "expected"),
    [
        ("model = AutoModel.from_pretrained('x', torch_dtype=torch.float16)", "True", [(1, "error")]),
        ("model = AutoModel.from_pretrained('x', torch_dtype=torch.float16)", "False", WARNED),
        ("model = AutoModel.from_pretrained('x')", "True", []),
        ("model = AutoModel.from_pretrained('x', torch_dtype=torch.float16)\nmodel.requires_grad_(False)", "True", []),
        ("model = get_peft_model(AutoModel.from_pretrained('x', torch_dtype=torch.float16), c)", "True", []),
    ],
)
def test_what_a_trainer_trains(made: str, fp16: str, expected: list[tuple[int, str]]) -> None:
    assert found(made + TRAINED.replace("FP16", fp16)) == expected


OWN = """\
class Own(BASE):
    def compute_loss(self, model, inputs, return_outputs=False):
        dtype = torch.bfloat16 if self.args.bf16 else torch.float32
        WHAT.to(dtype=dtype)
        return model(**inputs).loss
"""


@pytest.mark.parametrize(
    ("base", "what", "expected"),
    [("Trainer", "model", [(4, "warning")]), ("Trainer", "inputs['x']", []), ("Other", "model", [])],
)
def test_a_trainer_that_casts_what_it_is_given(base: str, what: str, expected: list[tuple[int, str]]) -> None:
    assert found(OWN.replace("BASE", base).replace("WHAT", what)) == expected


NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.second(self.first(x))


"""
NET_LINES = NET.count("\n")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("torch.set_default_dtype(torch.float16)\nmodel = nn.Linear(8, 8)", [1]),
        ("torch.set_default_dtype(torch.bfloat16)\nmodel = Net()", [1]),
        (
            "dtype = torch.half\ntorch.set_default_dtype(d=dtype)\nmodel = nn.Sequential(nn.Conv2d(3, 3, 1))",
            [2],
        ),
        ("torch.set_default_dtype(torch.bfloat16 if low else torch.float32)\nmodel = Net()", [1]),
        ("if low:\n    torch.set_default_dtype(torch.float16)\nmodel = Net()", [2]),
        ("torch.set_default_dtype(torch.float64)\nmodel = Net()", []),
        ("model = Net()\ntorch.set_default_dtype(torch.float16)", []),
        ("torch.set_default_dtype(torch.float16)\nmodel = nn.Linear(8, 8, dtype=torch.float32)", []),
        ("torch.set_default_dtype(torch.float16)\nother = Net()\ntorch.set_default_dtype(old)\nmodel = Net()", []),
        ("torch.set_default_dtype(torch.float16)\nmodel = Net().float()", []),
        ("torch.set_default_dtype(torch.float16)\nmodel = Net()\nmodel.to(torch.float32)", []),
    ],
)
def test_a_low_default_dtype_of_what_is_trained(made: str, expected: list[int]) -> None:
    assert [line - NET_LINES for line, _ in in_a_loop(NET + made)] == expected


def test_a_scaler_refuses_what_the_default_made_float16() -> None:
    made = "torch.set_default_dtype(torch.float16)\nmodel = nn.Linear(8, 8)"
    assert in_a_loop(made, scaled=True) == [(1, "error")]


def test_what_is_made_low_and_cast_to_float32_is_trained_in_that() -> None:
    low = NET.replace("nn.Linear(8, 8)", "nn.Linear(8, 8, dtype=torch.bfloat16)")
    assert in_a_loop(low + "model = Net()") == [(4, "warning")]
    assert in_a_loop(low + "model = Net().float()") == []


LIGHTNING = """
import lightning as L
def main(cfg):
    model = MADE
    trainer = L.Trainer(max_epochs=1, precision=PRECISION)
    trainer.METHOD(model)
def other():
    trainer = L.Trainer()
    trainer.fit(Other())
"""


@pytest.mark.parametrize(
    ("made", "precision", "method", "expected"),
    [
        ("Net(cfg)", '"bf16-true"', "fit", [(5, "warning")]),
        ("Net(cfg)", '"16-true"', "fit", [(5, "warning")]),
        ("Net(cfg)", '"bf16-mixed"', "fit", []),
        ("Net(cfg)", '"32-true"', "fit", []),
        ("Net(cfg)", "cfg.precision", "fit", []),
        ("Net(cfg)", '"bf16-true"', "predict", []),
        ("get_peft_model(Net(cfg), cfg)", '"bf16-true"', "fit", []),
    ],
)
def test_a_precision_of_lightning_that_stores_low_parameters(
    made: str, precision: str, method: str, expected: list[tuple[int, str]]
) -> None:
    source = LIGHTNING.replace("MADE", made).replace("PRECISION", precision).replace("METHOD", method)
    assert found(source) == expected
    for name in ("import pytorch_lightning as L", "import lightning.pytorch as L"):
        assert found(source.replace("import lightning as L", name)) == expected


def test_the_remedy_names_the_mixed_precision() -> None:
    source = LIGHTNING.replace("MADE", "Net(cfg)").replace("PRECISION", '"16-true"').replace("METHOD", "fit")
    (finding,) = check_source(source)
    assert not finding.certain
    assert finding.message.endswith('write `precision="16-mixed"`')


def test_another_trainer_with_such_a_precision_is_not_lightnings() -> None:
    assert found('Trainer(precision="bf16-true").fit(x, y)\nSVC(precision="bf16-true").fit(x)\n') == []


@pytest.mark.parametrize(
    ("argument", "adapted", "expected"),
    [
        ('torch_dtype="auto"', "", WARNED),
        ("dtype='auto'", "", WARNED),
        ('torch_dtype="auto", load_in_4bit=True', "", []),
        ('device_map="auto"', "", []),
        ("torch_dtype=args.dtype", "", []),
        ('torch_dtype="auto"', "model.requires_grad_(False)", []),
        ('torch_dtype="auto"', "model = get_peft_model(model, LoraConfig())", []),
        ('torch_dtype="auto"', "model = model.float()", []),
        ('torch_dtype="auto"', "model = model.to(torch.float32)", []),
    ],
)
def test_a_model_loaded_in_the_dtype_of_its_checkpoint(
    argument: str, adapted: str, expected: list[tuple[int, str]]
) -> None:
    made = f'model = AutoModel.from_pretrained("base", {argument})\n{adapted}'
    assert in_a_loop(made) == expected
    for fp16 in ("True", "False"):
        assert found(made + TRAINED.replace("FP16", fp16)) == expected


def test_the_dtype_of_a_checkpoint_may_be_low() -> None:
    source = (
        HEAD.replace("import torch\n", "import torch  # no low dtype\n")
        + 'm = AutoModel.from_pretrained("b", dtype="auto")'
    )
    (finding,) = check_source(f"{source}\nTrainer(model=m).train()\n")
    assert not finding.certain
    assert '`dtype="auto"` stores trained parameters in the dtype of the checkpoint' in finding.message


def test_a_model_loaded_in_the_dtype_of_its_checkpoint_for_inference() -> None:
    assert (
        found('model = AutoModel.from_pretrained("base", torch_dtype="auto")\nmodel(x)\nprint("Trainer parameters")\n')
        == []
    )


SHARDED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

def train(net, batches):
    net.to(torch.float16)
    net = FSDP(net)
    opt = torch.optim.AdamW(net.parameters())
    scaler = {scaler}("cuda")
    for images in batches:
        opt.zero_grad()
        loss = net(images).float().mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

train(torch.nn.Linear(8, 8), batches)
"""


@pytest.mark.parametrize(("scaler", "refuses"), [("ShardedGradScaler", False), ("torch.amp.GradScaler", True)])
def test_only_a_plain_scaler_refuses_float16_gradients(scaler: str, refuses: bool) -> None:
    found = [finding for finding in check_source(SHARDED.format(scaler=scaler)) if finding.code == "AMP501"]
    assert [("refuses" in finding.message) for finding in found] == [refuses]
