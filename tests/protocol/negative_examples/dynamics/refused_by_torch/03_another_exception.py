# an exception that has nothing to do with precision

import torch


def check(loss):
    if not torch.isfinite(loss):
        raise ValueError("the loss is not finite: look at the data")


check(torch.tensor(1.0))
