# each way of wrapping has its own clip

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = Net()
if config["fsdp"]:
    model = FSDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    if config["fsdp"]:
        model.clip_grad_norm_(0.1)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
