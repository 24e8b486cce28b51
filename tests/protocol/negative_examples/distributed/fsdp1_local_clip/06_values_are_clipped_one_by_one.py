# values are clipped one by one

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
