# with fully_shard the gradients are DTensors, whose norm is that of all ranks

from torch.distributed.fsdp import fully_shard

model = Net()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
