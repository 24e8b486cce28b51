# No AMP216: with CUDA the region is entered for `cuda:0` and its like, and the scaler is for CUDA, too.
import torch
from torch.amp import GradScaler, autocast


def train(args, rank, model, criterion, loader):
    amp = args.amp and torch.cuda.is_available()
    kind = f"cuda:{rank}" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    same = "cuda:%d" % rank if torch.cuda.is_available() else "mps"
    again = "cuda:" + str(rank) if torch.cuda.is_available() else "mps"
    scaler = GradScaler(enabled=amp)
    optimizer = torch.optim.AdamW(model.parameters())
    for inputs, targets in loader:
        with autocast(kind, dtype=torch.float16, enabled=amp):
            features = model.features(inputs)
        with autocast(device_type=same, dtype=torch.float16, enabled=amp):
            output = model.head(features)
        with autocast(again, dtype=torch.float16, enabled=amp):
            loss = criterion(output, targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
