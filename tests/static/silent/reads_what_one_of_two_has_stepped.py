# No AMP202: the norms are read after the step, which has unscaled them, whichever of the two optimizers it is.
import apex
import torch
from accelerate import Accelerator


class Sign(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.sub_(param.grad.sign(), alpha=group["lr"])


def train(config, model, loader):
    accelerator = Accelerator(mixed_precision="fp16")
    if config.kind == "fused":
        chosen = apex.optimizers.FusedAdam
    else:
        chosen = Sign
    optimizer = chosen(model.parameters(), lr=config.lr)
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            if config.norm and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), config.norm)
            optimizer.step()
            if accelerator.sync_gradients:
                log_norms(model, accelerator)
            optimizer.zero_grad()


def log_norms(model, accelerator):
    for name, param in model.named_parameters():
        if param.grad is not None:
            accelerator.log({name: param.grad.detach().norm().item()})
