# a test of the class decides which clip it is

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(Net()) if config["fsdp"] else Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    if not isinstance(model, FSDP):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
