"""Frameworks that scale for the program: correct idioms stay silent, and each mistake is found on its line.

Each case is a whole program as a user of the framework writes it. The packages are not installed, so the programs are
analyzed, not run. The effects of the calls are taken from the packages' own source.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import marks, places, shown

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.severities import ERROR, INFO, WARNING
from pytest_amp_check.static.engine import check_paths, check_source

RIGHT: dict[str, str] = {}
WRONG: dict[str, str] = {}

# accelerate: https://huggingface.co/docs/accelerate, and its examples.

RIGHT["accelerate, quick tour"] = """\
import torch
from accelerate import Accelerator

def main(model, loader, scheduler):
    accelerator = Accelerator(mixed_precision="fp16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
"""
RIGHT["accelerate, accumulate and clip where gradients are synchronised"] = """\
import torch
import torch.nn.functional as F
from accelerate import Accelerator

def main(model, loader, args):
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
        if step % 100 == 0:
            accelerator.save_state("last")
"""
RIGHT["accelerate, a clip for one of two optimizers unscales what is left of the other, too"] = """\
import torch
from accelerate import Accelerator

def train(gen, discr, loader, args):
    accelerator = Accelerator(mixed_precision="fp16")
    optim = torch.optim.Adam(gen.parameters())
    discr_optim = torch.optim.Adam(discr.parameters())
    gen, discr, optim, discr_optim = accelerator.prepare(gen, discr, optim, discr_optim)
    for x in loader:
        accelerator.backward(gen(x).mean())
        if args.max_grad_norm:
            accelerator.clip_grad_norm_(gen.parameters(), args.max_grad_norm)
        optim.step()
        optim.zero_grad()
        discr_optim.zero_grad()
        accelerator.backward(gen(x, discr).mean())
        if args.max_grad_norm:
            accelerator.clip_grad_norm_(discr.parameters(), args.max_grad_norm)
        discr_optim.step()
"""
RIGHT["accelerate, its own window: the Accelerator divides by one, the program by k"] = """\
import torch
import torch.nn.functional as F
from accelerate import Accelerator

def main(model, loader, k):
    accelerator = Accelerator(mixed_precision="fp16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        loss = loss / k
        accelerator.backward(loss)
        if (i + 1) % k == 0:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""
RIGHT["accelerate, torch's clip under bf16"] = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16")

def train(model, optimizer, loader, loss_fn):
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
RIGHT["accelerate, torch's clip where the program asks for the precision"] = """\
import torch
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, args):
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        if accelerator.mixed_precision == "fp16":
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
RIGHT["accelerate, unscaled by hand before torch's clip"] = """\
import torch
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        accelerator.unscale_gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
RIGHT["accelerate, the scaler inside it used by hand"] = """\
import torch
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, args):
    accelerator = Accelerator(mixed_precision=args.precision)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        if accelerator.scaler is not None:
            accelerator.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
RIGHT["accelerate, generator and discriminator"] = """\
import torch
from accelerate import Accelerator

def train(G, D, opt_g, opt_d, loader, adversarial):
    accelerator = Accelerator(mixed_precision="fp16")
    G, D, opt_g, opt_d, loader = accelerator.prepare(G, D, opt_g, opt_d, loader)
    for real, noise in loader:
        opt_d.zero_grad()
        d_loss = adversarial(D(real), D(G(noise).detach()))
        accelerator.backward(d_loss)
        accelerator.clip_grad_norm_(D.parameters(), 1.0)
        opt_d.step()
        opt_g.zero_grad()
        g_loss = -D(G(noise)).mean()
        accelerator.backward(g_loss)
        accelerator.clip_grad_norm_(G.parameters(), 1.0)
        opt_g.step()
"""
RIGHT["accelerate, an accelerator only where it is asked for"] = """\
import torch
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, args):
    accelerator = Accelerator(mixed_precision="fp16") if args.accelerate else None
    if accelerator is not None:
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        if accelerator is not None:
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""
RIGHT["accelerate, an optimizer of its own beside the prepared one"] = """\
import torch
from accelerate import Accelerator

def train(model, probe, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16")
    optimizer = torch.optim.AdamW(model.parameters())
    own = torch.optim.SGD(probe.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        optimizer.step()
        own.zero_grad()
        loss_fn(probe(x), y).backward()
        torch.nn.utils.clip_grad_norm_(probe.parameters(), 1.0)
        own.step()
"""
RIGHT["accelerate, the number of micro-batches set later"] = """\
import torch.nn.functional as F
from accelerate import Accelerator

def train(model, optimizer, loader, k):
    accelerator = Accelerator()
    accelerator.gradient_accumulation_steps = k
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
RIGHT["accelerate, saved through it"] = """\
import torch
from accelerate import Accelerator

class Trainer:
    def __init__(self, model, lr):
        self.accelerator = Accelerator(mixed_precision="fp16")
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.model, self.opt = self.accelerator.prepare(model, self.opt)

    def train_step(self, x, y):
        self.opt.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()

    def save(self, path):
        self.accelerator.save_state(path)
"""

WRONG["accelerate, torch's clip under fp16"] = """\
import torch
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        optimizer.step()
"""
WRONG["accelerate, the loop in a function of its own"] = """\
from accelerate import Accelerator
from torch.nn.utils import clip_grad_norm_

def epoch(accelerator, model, optimizer, loader, loss_fn):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(x), y))
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        optimizer.step()

def main(model, optimizer, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    epoch(accelerator, model, optimizer, loader, loss_fn)
"""
WRONG["accelerate, kept in an object"] = """\
import torch
from accelerate import Accelerator

class Trainer:
    def __init__(self, model, lr):
        self.accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.model, self.opt = self.accelerator.prepare(self.model, self.opt)

    def train_step(self, x, y):
        with self.accelerator.accumulate(self.model):
            loss = torch.nn.functional.mse_loss(self.model(x), y)
            self.accelerator.backward(loss)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
            self.opt.step()
            self.opt.zero_grad()
"""
WRONG["accelerate, loss.backward() under fp16"] = """\
import torch
from accelerate import Accelerator

def train(model, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16")
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()  # AMP203
        optimizer.step()
"""
WRONG["accelerate, a skip between the clip and the step"] = """\
import torch
from accelerate import Accelerator

def train(model, loader, loss_fn):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_fn(model(x), y))
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)  # AMP209
                if not torch.isfinite(norm):
                    optimizer.zero_grad()
                    continue
            optimizer.step()
            optimizer.zero_grad()
"""
CLIPPED_IN_WINDOWS = """\
import torch
from accelerate import Accelerator

def main(model, loader, scheduler, args):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps={steps})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for batch in loader:
        with {within}:
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0){mark}
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
PIPELINE = """\
import torch
from accelerate import Accelerator
from diffusers import StableDiffusionPipeline

def main(config, loader):
    accelerator = Accelerator(mixed_precision=config.mixed_precision)
    pipeline = StableDiffusionPipeline.from_pretrained(config.pretrained)
    low = torch.float16 if accelerator.mixed_precision == "fp16" else torch.float32
    pipeline.vae.to(accelerator.device, dtype=low)
    pipeline.unet.requires_grad_({trained})
    pipeline.unet.to(accelerator.device, dtype=low){mark}
    unet = pipeline.unet
    optimizer = torch.optim.AdamW(unet.parameters(), lr=3e-5)
    unet, optimizer = accelerator.prepare(unet, optimizer)
    for x, noise in loader:
        accelerator.backward((unet(x).sample - noise).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
"""
WRONG["accelerate, a part of a pipeline that is cast before it has a name"] = PIPELINE.format(
    trained="not config.use_lora", mark="  # AMP501"
)
RIGHT["accelerate, a part of a pipeline that is frozen and cast"] = PIPELINE.format(trained="False", mark="")
WRONG["accelerate, a clip in each micro-batch"] = CLIPPED_IN_WINDOWS.format(
    steps="args.steps", within="accelerator.accumulate(model)", mark="  # AMP303"
)
RIGHT["accelerate, a clip in each batch where windows are of one"] = CLIPPED_IN_WINDOWS.format(
    steps="1", within="accelerator.accumulate(model)", mark=""
)
WRONG["accelerate, a window of which the Accelerator does not know"] = """\
import torch.nn.functional as F
from accelerate import Accelerator

def train(model, optimizer, loader, args):
    if args.tracking:
        accelerator = Accelerator(mixed_precision=args.mixed_precision, log_with="wandb")
    else:
        accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)  # AMP301
        if (i + 1) % args.k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
WRONG["accelerate, divided inside accumulate()"] = """\
import torch.nn.functional as F
from accelerate import Accelerator

def train(model, optimizer, loader, args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y) / args.gradient_accumulation_steps  # AMP302
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
WRONG["accelerate, divided outside accumulate(), where there is more than one"] = """\
from accelerate import Accelerator

def train(model, optimizer, loader, loss_fn, k):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for i, batch in enumerate(loader):
        loss = loss_fn(model, batch)
        if k > 1:
            loss = loss / k  # AMP302
        accelerator.backward(loss)
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
WRONG["accelerate, divided by its own attribute, in place"] = """\
def train(accelerator, model, optimizer, loader, loss_fn):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_fn(model, batch)
            loss /= accelerator.gradient_accumulation_steps  # AMP302
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
WRONG["accelerate, divided in both phases of a loop"] = """\
from accelerate import Accelerator

def train(G, D, opt_g, opt_d, loader, g_loss, d_loss, k):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    G, D, opt_g, opt_d, loader = accelerator.prepare(G, D, opt_g, opt_d, loader)
    phase = "G"
    for batch in loader:
        with accelerator.accumulate(G, D):
            if phase == "G":
                loss = g_loss(G, D, batch)
                accelerator.backward(loss / k)  # AMP302
                if accelerator.sync_gradients:
                    phase = "D"
                    opt_g.step()
                    opt_g.zero_grad()
            elif phase == "D":
                loss = d_loss(G, D, batch)
                accelerator.backward(loss / k)  # AMP302
                if accelerator.sync_gradients:
                    phase = "G"
                    opt_d.step()
                    opt_d.zero_grad()
"""
WRONG["accelerate, BCE in the region that it enters"] = """\
import torch.nn.functional as F
from accelerate import Accelerator

def train(model, optimizer, loader):
    accelerator = Accelerator(mixed_precision="bf16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = F.binary_cross_entropy(model(x).sigmoid(), y)  # AMP504
        accelerator.backward(loss)
        optimizer.step()
"""

# Lightning: https://lightning.ai/docs/pytorch, manual optimization and Fabric.

RIGHT["Lightning, automatic optimization"] = """\
import lightning as L
import torch
import torch.nn.functional as F

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.binary_cross_entropy_with_logits(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

trainer = L.Trainer(precision="16-mixed", accumulate_grad_batches=4, gradient_clip_val=1.0)
trainer.fit(Model())
"""
RIGHT["Lightning, manual optimization without a clip"] = """\
import lightning.pytorch as pl
import torch

class GAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        g_opt, d_opt = self.optimizers()
        self.toggle_optimizer(d_opt)
        d_loss = self.d_loss(batch)
        d_opt.zero_grad()
        self.manual_backward(d_loss)
        d_opt.step()
        self.untoggle_optimizer(d_opt)
        g_loss = self.g_loss(batch)
        g_opt.zero_grad()
        self.manual_backward(g_loss)
        g_opt.step()

trainer = pl.Trainer(precision="16-mixed")
"""
RIGHT["Lightning, a closure in manual optimization"] = """\
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        opt = self.optimizers()

        def closure():
            loss = self.compute_loss(batch)
            opt.zero_grad()
            self.manual_backward(loss)
            return loss

        opt.step(closure=closure)

pl.Trainer(precision=16)
"""
RIGHT["Lightning, its own window in manual optimization"] = """\
import lightning as L

class Model(L.LightningModule):
    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        loss = self.compute_loss(batch) / self.hparams.k
        self.manual_backward(loss)
        if (batch_idx + 1) % self.hparams.k == 0:
            opt.step()
            opt.zero_grad()

L.Trainer(precision="16-mixed")
"""
MANUAL = """\
import torch
from lightning import LightningModule, Trainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()
        loss = self.compute_loss(batch)
        self.manual_backward(loss)
        self.clip_gradients(opt, gradient_clip_val=0.5, gradient_clip_algorithm="norm"){mark}
        opt.step()

def main(args):
    {trainer}
"""
RIGHT["Lightning, a clip in manual optimization, in bfloat16"] = MANUAL.format(
    trainer='Trainer(precision="bf16-mixed").fit(Model())', mark=""
)
RIGHT["Lightning, a clip in manual optimization, in float32"] = MANUAL.format(trainer="Trainer().fit(Model())", mark="")
RIGHT["Lightning, a clip in manual optimization, where nothing speaks of a precision"] = MANUAL.format(
    trainer="fit(Model())", mark=""
)
RIGHT["Lightning, unscaled by hand in manual optimization"] = """\
import torch
from lightning import LightningModule, Trainer

class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(self.compute_loss(batch))
        self.trainer.precision_plugin.scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        opt.step()

Trainer(precision="16-mixed").fit(Model())
"""
RIGHT["Lightning, BCE with the trainer elsewhere in float32"] = """\
import lightning as L
import torch.nn.functional as F

class Model(L.LightningModule):
    def training_step(self, batch, batch_idx):
        return F.binary_cross_entropy(self(batch[0]).sigmoid(), batch[1])

L.Trainer(precision=32).fit(Model())
"""
RIGHT["Fabric"] = """\
import torch
from lightning.fabric import Fabric

def main(model, loader, loss_fn):
    fabric = Fabric(accelerator="cuda", precision="16-mixed")
    fabric.launch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    for i, (x, y) in enumerate(loader):
        accumulating = (i + 1) % 8 != 0
        with fabric.no_backward_sync(model, enabled=accumulating):
            loss = loss_fn(model(x), y)
            fabric.backward(loss / 8)
        if not accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
            optimizer.step()
            optimizer.zero_grad()
    fabric.save("checkpoint", {"model": model, "optimizer": optimizer})
"""

WRONG["Lightning, a clip in manual optimization, in float16"] = MANUAL.format(
    trainer='Trainer(precision="16-mixed").fit(Model())', mark="  # AMP201"
)
WRONG["Lightning, torch's clip in manual optimization, with several optimizers"] = """\
import pytorch_lightning as pl
from torch.nn.utils import clip_grad_norm_

class GAN(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        g_opt, d_opt = self.optimizers()
        d_opt.zero_grad()
        self.manual_backward(self.d_loss(batch))
        clip_grad_norm_(self.discriminator.parameters(), 1.0)  # AMP201
        d_opt.step()
        g_opt.zero_grad()
        self.manual_backward(self.g_loss(batch))
        g_opt.step()

trainer = pl.Trainer(precision=16)
"""
HOOK = """\
import torch
from lightning import LightningModule, Trainer

class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        return self.loss_of(batch)

    def {hook}(self{given}):
        {body}

Trainer(precision="{precision}").fit(Model())
"""
AFTER_BACKWARD = {
    "a clip": ("torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)", "AMP201"),
    "a norm that is logged": ("self.log('norm', sum(p.grad.norm() for p in self.parameters()))", "AMP202"),
    "an edit": ("[p.grad.clamp_(-1, 1) for p in self.parameters()]", "AMP202"),
}
for _name, (_body, _code) in AFTER_BACKWARD.items():
    WRONG[f"Lightning, {_name} while gradients are scaled"] = HOOK.format(
        hook="on_after_backward", given="", body=f"{_body}  # {_code}", precision="16-mixed"
    )
    RIGHT[f"Lightning, {_name} in bfloat16"] = HOOK.format(
        hook="on_after_backward", given="", body=_body, precision="bf16-mixed"
    )
    RIGHT[f"Lightning, {_name} where gradients are unscaled"] = HOOK.format(
        hook="on_before_optimizer_step", given=", optimizer", body=_body, precision="16-mixed"
    )
for _name, _body in {
    "parameters without a gradient": "print([n for n, p in self.named_parameters() if p.grad is None])",
    "whether gradients are finite": "self.bad = any(p.grad.isnan().any() for p in self.parameters())",
}.items():
    RIGHT[f"Lightning, {_name} after the backward"] = HOOK.format(
        hook="on_after_backward", given="", body=_body, precision="16-mixed"
    )
WRONG["Lightning, divided in automatic optimization"] = """\
import lightning as L
import torch.nn.functional as F

class Model(L.LightningModule):
    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        loss = loss / self.trainer.accumulate_grad_batches  # AMP302
        self.log("loss", loss)
        return {"loss": loss}
"""
WRONG["Lightning, divided by the number that the Trainer is given"] = """\
import lightning as L
import torch.nn.functional as F

ACCUMULATE = 8

class Model(L.LightningModule):
    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        return loss / ACCUMULATE  # AMP302

L.Trainer(accumulate_grad_batches=ACCUMULATE).fit(Model())
"""
WRONG["Lightning, BCE in a step, through a helper"] = """\
import lightning as L
import torch.nn.functional as F
from torch import nn

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.criterion = nn.BCELoss()

    def _step(self, batch):
        return self.criterion(self(batch[0]).sigmoid(), batch[1])  # AMP504

    def training_step(self, batch, batch_idx):
        return self._step(batch)

L.Trainer(precision="bf16-mixed").fit(Model())
"""
WRONG["Fabric, torch's clip"] = """\
import torch
from lightning.fabric import Fabric

def main(model, loader, loss_fn):
    fabric = Fabric(precision="16-mixed")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward(loss_fn(model(x), y))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        optimizer.step()
"""
WRONG["Fabric does not divide"] = """\
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric

def main(model, loader):
    fabric = Fabric(precision="bf16-mixed")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)  # AMP301
        if (i + 1) % 8 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

# timm, mmengine, apex, DeepSpeed, FSDP, fairscale, ignite, transformers.

RIGHT["timm"] = """\
import torch
from timm.utils import NativeScaler

def train(model, optimizer, loader, loss_fn, args, k):
    loss_scaler = NativeScaler()
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        need_update = (i + 1) % k == 0
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        loss_scaler(
            loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters(), need_update=need_update
        )
        if need_update:
            optimizer.zero_grad()
    torch.save({"optimizer": optimizer.state_dict(), loss_scaler.state_dict_key: loss_scaler.state_dict()}, "last.pt")
"""
RIGHT["mmengine"] = """\
from mmengine.optim import AmpOptimWrapper
import torch

def train(model, loader):
    wrapper = AmpOptimWrapper(
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1), accumulative_counts=4, clip_grad=dict(max_norm=1.0)
    )
    for data in loader:
        with wrapper.optim_context(model):
            loss = model(data)
        wrapper.update_params(loss)
    for data in loader:
        with wrapper.optim_context(model):
            loss = model(data)
        wrapper.backward(loss)
        wrapper.step()
        wrapper.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": wrapper.state_dict()}, "last.pt")
"""
RIGHT["apex, accumulation unscales every micro-batch by itself"] = """\
import torch
from apex import amp

def train(model, optimizer, loader, loss_fn, k):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / k
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        if (i + 1) % k == 0:
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""
RIGHT["apex, unscaled with the last micro-batch"] = """\
import torch
from apex import amp

def train(model, optimizer, loader, loss_fn, k):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % k == 0
        loss = loss_fn(model(x), y) / k
        with amp.scale_loss(loss, optimizer, delay_unscale=not last) as scaled_loss:
            scaled_loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
"""
RIGHT["apex, one of three ways to train"] = """\
import torch
try:
    from apex import amp
except ImportError:
    amp = None

def train(model, optimizer, loader, loss_fn, args):
    scaler = torch.cuda.amp.GradScaler() if args.native else None
    if args.apex:
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=args.native):
            loss = loss_fn(model(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        elif args.apex:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
"""
RIGHT["apex, two losses and two optimizers"] = """\
from apex import amp

def train(model, first, second, loader, losses):
    model, [first, second] = amp.initialize(model, [first, second], opt_level="O1", num_losses=2)
    for x in loader:
        one, two = losses(model(x))
        first.zero_grad()
        second.zero_grad()
        with amp.scale_loss(one, first, loss_id=0) as scaled_loss:
            scaled_loss.backward()
        with amp.scale_loss(two, [first, second], loss_id=1) as scaled_loss:
            scaled_loss.backward()
        first.step()
        second.step()
"""
RIGHT["DeepSpeed"] = """\
import deepspeed
import torch.nn.functional as F

def train(model, args, loader):
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        if i % 100 == 0:
            engine.save_checkpoint("out")
"""
RIGHT["FSDP2"] = """\
import torch
from torch.distributed.fsdp import fully_shard

def train(model, loader, loss_fn):
    for layer in model.layers:
        fully_shard(layer)
    model = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT["fairscale"] = """\
import torch
from fairscale.nn import FullyShardedDataParallel as FSDP
from fairscale.optim.grad_scaler import ShardedGradScaler

def train(model, loader, loss_fn):
    model = FSDP(model, mixed_precision=True)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = ShardedGradScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        model.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT["ignite"] = """\
import torch
from ignite.engine import Engine, Events, supervised_training_step_amp
from ignite.handlers import Checkpoint, DiskSaver

def build(model, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda", 2**10)
    step = supervised_training_step_amp(
        model, optimizer, loss_fn, "cuda", scaler=scaler, gradient_accumulation_steps=4
    )
    trainer = Engine(step)
    to_save = {"model": model, "optimizer": optimizer, "scaler": scaler, "trainer": trainer}
    trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(to_save, DiskSaver("out")))
    return trainer
"""
RIGHT["transformers, a Trainer with a loss of its own"] = """\
import torch.nn.functional as F
from transformers import Trainer

class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs):
        model.train()
        loss = self.compute_loss(model, inputs)
        if self.args.gradient_accumulation_steps > 1:
            loss = loss / self.args.gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()
"""

WRONG["timm, a window without a division"] = """\
import torch
import torch.nn.functional as F
from timm.utils import NativeScaler

def train(model, optimizer, loader, k):
    loss_scaler = NativeScaler()
    for i, (x, y) in enumerate(loader):
        need_update = (i + 1) % k == 0
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        loss_scaler(loss, optimizer, need_update=need_update)  # AMP301
        if need_update:
            optimizer.zero_grad()
"""
# A scaler that is passed: a copy of timm's gets its options by name, and other classes may clear the gradients.
WRONG["a passed scaler with the options of timm's copies"] = """\
import torch

def train(model, optimizer, loader, loss_fn, loss_scaler, limit):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        loss_scaler(loss, optimizer, clip_grad=limit, parameters=model.parameters(), update_grad=True)  # AMP215
"""
RIGHT["a passed scaler with arguments of its own"] = (
    WRONG["a passed scaler with the options of timm's copies"]
    .replace("clip_grad=limit, parameters=model.parameters(), update_grad=True", "model.parameters(), limit, True")
    .replace("  # AMP215", "")
)
WRONG["timm, a loss that is not scaled"] = """\
import torch
from timm.utils import NativeScaler

def train(model, optimizer, loader, loss_fn):
    loss_scaler = NativeScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        loss.backward()  # AMP203
        loss_scaler(loss, optimizer)
"""
WRONG["timm, the scaler is not saved"] = """\
import torch
from timm.utils import NativeScaler

def train(model, loader, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    loss_scaler = NativeScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        loss_scaler(loss, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")  # AMP401
"""
IGNITE = """\
import torch
from ignite.contrib.engines import common
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, ModelCheckpoint

def build(model, optimizer, loss_fn, config):
    scaler = torch.amp.GradScaler("cuda", enabled=config.amp)

    def step(engine, batch):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=config.amp):
            loss = loss_fn(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    trainer = Engine(step)
    to_save = {"model": model, "optimizer": optimizer, "trainer": trainer}
"""
WRONG["ignite, Checkpoint"] = f"""\
{IGNITE}
    handler = Checkpoint(to_save, DiskSaver("out"))  # AMP401
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    if config.resume:
        Checkpoint.load_objects(to_load=to_save, checkpoint=torch.load(config.resume))
    return trainer
"""
WRONG["ignite, ModelCheckpoint given the objects with the event"] = f"""\
{IGNITE}
    handler = ModelCheckpoint("out", "last")
    trainer.add_event_handler(event_name=Events.EPOCH_COMPLETED, handler=handler, to_save=to_save)  # AMP401
    return trainer
"""
WRONG["ignite, ModelCheckpoint called"] = f"""\
{IGNITE}
    handler = ModelCheckpoint("out", "last")

    @trainer.on(Events.EPOCH_COMPLETED)
    def write(engine):
        handler(engine, to_save)  # AMP401

    return trainer
"""
WRONG["ignite, the common handlers"] = f"""\
{IGNITE}
    common.setup_common_training_handlers(trainer, to_save=to_save, output_path="out")  # AMP401
    return trainer
"""
WRONG["ignite, a trainer that makes its own scaler"] = """\
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers.checkpoint import Checkpoint

def build(model, optimizer, loss_fn):
    trainer = create_supervised_trainer(model, optimizer, loss_fn, "cuda", amp_mode="amp", scaler=True)
    handler = Checkpoint({"model": model, "optimizer": optimizer}, "out")  # AMP401
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    return trainer
"""
WRONG["ignite, a trainer that is given a scaler"] = """\
import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import Checkpoint

def build(model, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    trainer = create_supervised_trainer(model, optimizer, loss_fn, "cuda", amp_mode="amp", scaler=scaler)
    handler = Checkpoint({"model": model, "optimizer": optimizer}, "out")  # AMP401
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    return trainer
"""
RIGHT["ignite, objects of which some are not known"] = f"""\
{IGNITE}
    to_save.update(config.extra(scaler))
    Checkpoint(to_save, DiskSaver("out"))
    Checkpoint({{**to_save, **config.more}}, DiskSaver("out"))
    Checkpoint({{"model": model, "best": config.best}}, DiskSaver("best"))
    return trainer
"""
RIGHT["ignite, an object that saves the scaler with its own state"] = """\
import torch
from ignite.engine import Engine
from ignite.handlers import Checkpoint

class State:
    def __init__(self, model):
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def state_dict(self):
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

def build(model, loss_fn):
    state = State(model)

    def step(engine, batch):
        state.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(batch[0]), batch[1])
        state.scaler.scale(loss).backward()
        state.scaler.step(state.optimizer)
        state.scaler.update()

    trainer = Engine(step)
    Checkpoint({"model": model, "state": state, "trainer": trainer}, "out")
    return trainer
"""
RIGHT["ignite, handlers that save nothing"] = f"""\
{IGNITE}
    trainer.add_event_handler(Events.EPOCH_COMPLETED, print, to_save)
    with config.finder.attach(trainer, to_save) as other:
        other.run(config.data)
    return trainer
"""

WRONG["mmengine, divided before update_params"] = """\
from mmengine.optim import AmpOptimWrapper

def train(model, optimizer, loader, loss_fn, k):
    wrapper = AmpOptimWrapper(optimizer=optimizer, accumulative_counts=k)
    for data in loader:
        with wrapper.optim_context(model):
            loss = loss_fn(model(data))
        wrapper.update_params(loss / k)  # AMP302
"""
WRONG["mmengine, torch's clip between backward and step"] = """\
import torch
from mmengine.optim import AmpOptimWrapper

def train(model, loader, loss_fn):
    wrapper = AmpOptimWrapper(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for data in loader:
        with wrapper.optim_context(model):
            loss = loss_fn(model(data))
        wrapper.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        wrapper.step()
        wrapper.zero_grad()
"""
WRONG["mmengine, a loss that is not scaled"] = """\
from mmengine.optim import AmpOptimWrapper

def train(model, optimizer, loader, loss_fn):
    wrapper = AmpOptimWrapper(optimizer=optimizer)
    for data in loader:
        with wrapper.optim_context(model):
            loss = loss_fn(model(data))
        loss.backward()  # AMP203
        wrapper.step()
        wrapper.zero_grad()
"""
WRONG["apex, clipped inside the block"] = """\
import torch
from apex import amp

def train(model, optimizer, loader, loss_fn):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)  # AMP201
        optimizer.step()
"""
WRONG["apex, stepped inside the block"] = """\
from apex import amp

def train(model, optimizer, loader, loss_fn):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x, y in loader:
        optimizer.zero_grad()
        with amp.scale_loss(loss_fn(model(x), y), optimizer) as scaled_loss:
            scaled_loss.backward()
            optimizer.step()  # AMP204
"""
WRONG["apex, never unscaled"] = """\
from apex import amp

def train(model, optimizer, loader, loss_fn, k):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / k
        with amp.scale_loss(loss, optimizer, delay_unscale=True) as scaled_loss:
            scaled_loss.backward()
        if (i + 1) % k == 0:
            optimizer.step()  # AMP204
            optimizer.zero_grad()
"""
WRONG["apex O2, clipped where the float16 copies are"] = """\
import torch
from apex import amp

def train(model, optimizer, loader, loss_fn):
    model = model.cuda()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        optimizer.step()
"""
WRONG["apex, a window without a division"] = """\
import torch.nn.functional as F
from apex import amp

def train(model, optimizer, loader, k):
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()  # AMP301
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
WRONG["DeepSpeed, divided by its own number"] = """\
import deepspeed
import torch.nn.functional as F

def train(model, args, loader):
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for x, y in loader:
        loss = F.cross_entropy(engine(x), y)
        loss = loss / engine.gradient_accumulation_steps()  # AMP302
        engine.backward(loss)
        engine.step()
"""


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_a_right_idiom_is_silent(source: str) -> None:
    findings = [finding for finding in check_source(source) if finding.code != "AMP901"]
    assert not findings, shown(findings)


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_a_mistake_is_found_where_it_is(source: str) -> None:
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


def one(source: str) -> Finding:
    findings = check_source(source)
    assert len(findings) == 1, shown(findings)
    return findings[0]


@pytest.mark.parametrize(
    ("accelerator", "severity"),
    [
        ('Accelerator(mixed_precision="fp16")', ERROR),
        ('Accelerator(mixed_precision="fp16" if args.half else "no")', ERROR),
        ("Accelerator(mixed_precision=args.mixed_precision)", WARNING),
        ("Accelerator()", INFO),
    ],
)
def test_a_clip_under_accelerate_weighs_as_much_as_is_known_of_the_precision(accelerator: str, severity: str) -> None:
    source = WRONG["accelerate, torch's clip under fp16"].replace("loss_fn):", "loss_fn, args):")
    finding = one(source.replace('Accelerator(mixed_precision="fp16")', accelerator))
    assert (finding.code, finding.severity) == ("AMP201", severity)
    assert "`accelerator.clip_grad_norm_`" in finding.message


@pytest.mark.parametrize(
    ("trainer", "severity"),
    [
        ('Trainer(precision="16-mixed").fit(Model())', ERROR),
        ("Trainer(precision=16).fit(Model())", ERROR),
        ("Trainer(precision=args.precision).fit(Model())", WARNING),
    ],
)
def test_a_clip_under_lightning_weighs_as_much_as_is_known_of_the_precision(trainer: str, severity: str) -> None:
    finding = one(MANUAL.format(trainer=trainer, mark=""))
    assert (finding.code, finding.severity) == ("AMP201", severity)
    assert "on_before_optimizer_step" in finding.message


@pytest.mark.parametrize(
    ("name", "does"), [("a clip", "clip"), ("an edit", "edit them"), ("a norm that is logged", "read them")]
)
def test_the_message_for_a_hook_of_lightning_names_a_later_hook(name: str, does: str) -> None:
    finding = one(WRONG[f"Lightning, {name} while gradients are scaled"])
    assert finding.message.endswith(
        f": {does} in `on_before_optimizer_step`, which runs after Lightning has unscaled them"
    )


def test_a_precision_in_another_file_makes_it_possible(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MANUAL.format(trainer="fit(Model())", mark=""))
    assert not check_paths([str(tmp_path)]).findings
    (tmp_path / "run.py").write_text('from lightning import Trainer\ntrainer = Trainer(precision="16-mixed")\n')
    (finding,) = check_paths([str(tmp_path)]).findings
    assert (finding.code, finding.severity) == ("AMP201", INFO)


BCE = """\
import lightning as L
import torch.nn.functional as F

class Model(L.LightningModule):
    def training_step(self, batch, batch_idx):
        return F.binary_cross_entropy(self(batch[0]).sigmoid(), batch[1])
"""


@pytest.mark.parametrize(
    ("trainer", "severity"),
    [
        ("", INFO),
        ('L.Trainer(precision="16-mixed")', ERROR),
        ("L.Trainer(precision=precision)", WARNING),
        ("L.Trainer(**settings)", INFO),
    ],
)
def test_bce_in_a_lightning_step_weighs_as_much_as_is_known_of_the_precision(trainer: str, severity: str) -> None:
    finding = one(BCE + trainer + "\n")
    assert (finding.code, finding.line, finding.severity) == ("AMP504", 6, severity)


def test_a_message_names_the_scaler_inside_the_accelerator() -> None:
    source = WRONG["accelerate, torch's clip under fp16"].replace(
        "model.parameters(), 1.0", 'model.parameters(), float("inf")'
    )
    finding = one(source)
    assert finding.code == "AMP202"
    assert "`accelerator.scaler.unscale_(" in finding.message


@pytest.mark.parametrize(
    ("framework", "remedy"),
    [
        ("mmengine", "call `wrapper.backward(loss)`"),
        ("timm", "leave the backward pass to the call of `loss_scaler`, which scales the loss"),
    ],
)
def test_a_message_names_what_scales_a_loss_in_a_framework(framework: str, remedy: str) -> None:
    finding = one(WRONG[f"{framework}, a loss that is not scaled"])
    assert finding.message == (
        f"`loss` is not scaled, but {framework} divides its gradients by the loss scale: {remedy}"
    )


def test_a_message_names_the_number_and_the_call_that_divides() -> None:
    finding = one(WRONG["accelerate, divided inside accumulate()"])
    assert "`args.gradient_accumulation_steps`" in finding.message
    assert "`accelerator.backward`" in finding.message


@pytest.mark.parametrize("number", ["4", "args.k", "config['k']", "int(args.k)"])
def test_the_number_of_micro_batches_is_known_by_its_value(number: str) -> None:
    source = WRONG["accelerate, divided inside accumulate()"].replace("args.gradient_accumulation_steps", number)
    assert places(check_source(source)) == marks(source)


@pytest.mark.parametrize("divisor", ["2", "args.other", "len(loader)", "y.sum()", "1"])
def test_another_number_is_no_double_division(divisor: str) -> None:
    source = WRONG["accelerate, divided inside accumulate()"]
    assert not check_source(source.replace("/ args.gradient_accumulation_steps", f"/ {divisor}"))


LIGHTNING_BY_HAND = """\
import torch
import lightning as L


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = MANUAL
        self.g, self.d = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        opt_g, opt_d = self.optimizers()
        loss_g = -self.d(self.g(batch)).mean()
        opt_g.zero_grad()
        BACKWARD_G
        opt_g.step()
        loss_d = self.d(self.g(batch).detach()).mean() - self.d(batch).mean()
        opt_d.zero_grad()
        BACKWARD_D
        opt_d.step()


L.Trainer(accelerator="gpu", precision=PRECISION).fit(Gan())
"""


@pytest.mark.parametrize(
    ("precision", "by_hand", "expected"),
    [
        ('"16-mixed"', False, []),
        ('"16-mixed"', True, [(15, "AMP203"), (19, "AMP203")]),
        ('"bf16-mixed"', True, []),
        ('"32-true"', True, []),
    ],
)
def test_a_lightningmodule_that_optimizes_by_hand(
    precision: str, by_hand: bool, expected: list[tuple[int, str]]
) -> None:
    source = LIGHTNING_BY_HAND.replace("MANUAL", "False").replace("PRECISION", precision)
    for name in ("g", "d"):
        call = f"loss_{name}.backward()" if by_hand else f"self.manual_backward(loss_{name})"
        source = source.replace(f"BACKWARD_{name.upper()}", call)
    found = check_source(source)
    assert [(f.line, f.code) for f in found] == expected
    assert all("call `self.manual_backward(loss_" in f.message for f in found)


LIGHTNING_OF_MANY = """\
import torch
import lightning as L


class Two(L.LightningModule):
    def __init__(self, one, two):
        super().__init__()
        self.automatic_optimization = False
        self.one, self.two = one, two

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.one(batch).mean() + self.two(batch).mean())
        for opt in self.optimizers(GIVEN):
            opt.STEP()
            opt.zero_grad()


L.Trainer(accelerator="gpu", precision=PRECISION).fit(Two(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
"""


@pytest.mark.parametrize(
    ("precision", "given", "step", "expected"),
    [
        ('"16-mixed"', "", "step", []),
        ('"16-mixed"', "use_pl_optimizer=False", "step", [(14, "AMP204")]),
        ('"16-mixed"', "", "optimizer.step", [(14, "AMP204")]),
        ('"bf16-mixed"', "use_pl_optimizer=False", "step", []),
    ],
)
def test_optimizers_without_what_lightning_wraps_around_them(
    precision: str, given: str, step: str, expected: list[tuple[int, str]]
) -> None:
    source = LIGHTNING_OF_MANY.replace("PRECISION", precision).replace("GIVEN", given).replace("STEP", step)
    found = check_source(source)
    assert [(f.line, f.code) for f in found] == expected
    assert all(
        f.message.endswith("step what `self.optimizers()` gives, which steps through Lightning's scaler") for f in found
    )


TWO_OPTIMIZERS = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="PRECISION")
one, two = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)
one, two, first, second = accelerator.prepare(one, two, first, second)
for x in loader:
    first.zero_grad()
    second.zero_grad()
    LOOP
"""
TOGETHER = """\
accelerator.backward(one(x).mean())
    accelerator.backward(two(x).mean())
    first.step()
    second.step()"""
ALTERNATING = """\
accelerator.backward(one(x).mean())
    first.step()
    accelerator.backward(two(x).mean())
    second.step()"""


@pytest.mark.parametrize(
    ("precision", "loop", "expected"),
    [("fp16", TOGETHER, [(14, "AMP207")]), ("fp16", ALTERNATING, []), ("bf16", TOGETHER, []), ("no", TOGETHER, [])],
)
def test_the_one_scale_of_two_optimizers(precision: str, loop: str, expected: list[tuple[int, str]]) -> None:
    found = check_source(TWO_OPTIMIZERS.replace("PRECISION", precision).replace("LOOP", loop))
    assert [(f.line, f.code) for f in found] == expected
    assert all("let each `optimizer.step()` follow its own `accelerator.backward()`" in f.message for f in found)


def test_advice_names_the_object_that_scales() -> None:
    source = TWO_OPTIMIZERS.replace("PRECISION", "fp16").replace("Accelerator", "A").replace("accelerator", "engine")
    source = source.replace("import A", "import Accelerator as A")
    loop = "one(x).mean().backward()\n    first.step()\n    two(x).mean().backward()\n    second.step()"
    found = [f for f in check_source(source.replace("LOOP", loop)) if f.code == "AMP203"]
    assert found
    assert all("call `engine.backward(" in f.message for f in found)
