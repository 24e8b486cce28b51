"""A model that is cast to float16 for an optimizer with float32 copies, and for no other one."""

import torch


class BertAdam(torch.optim.Optimizer):
    def step(self):
        pass


def main(model, loader, args):
    if args.fp16:
        model.half()
    groups = [{"params": [p for n, p in model.named_parameters()]}]
    if args.fp16:
        from optimization_fp16 import FP16_Optimizer_State
        from apex.optimizers import FusedAdam

        optimizer = FusedAdam(groups, lr=args.lr)
        if args.loss_scale == 0:
            optimizer = FP16_Optimizer_State(optimizer, dynamic_loss_scale=True)
        else:
            optimizer = FP16_Optimizer_State(optimizer, static_loss_scale=args.loss_scale)
    else:
        optimizer = BertAdam(groups, lr=args.lr)
    for x in loader:
        loss = model(x).mean()
        if args.fp16:
            optimizer.backward(loss)
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
