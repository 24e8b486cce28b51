# the old entry point takes enabled first

from torch.cuda.amp import autocast

with autocast(True, torch.bfloat16):
    output = model(inputs)
