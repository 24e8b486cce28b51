# activation checkpointing inside the region recomputes under the same autocast

from torch.utils.checkpoint import checkpoint

for inputs, targets in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = checkpoint(model.body, inputs, use_reentrant=False)
        loss = criterion(model.head(hidden), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
