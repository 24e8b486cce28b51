# No AMP301: a loss of unknown value is divided under `if k > 1`, which is nothing to divide by where it is 1.
import torch


def train(args, loader, parts, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    count = 0
    for batch in loader:
        with torch.autocast("cuda"):
            first, second = parts(batch)
            loss = first + second
        if args.k > 1:
            loss = loss / args.k
        scaler.scale(loss).backward()
        count += 1
        if count % args.k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
