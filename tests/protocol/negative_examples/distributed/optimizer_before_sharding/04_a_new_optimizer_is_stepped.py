# the first optimizer is replaced before it makes a step

from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

model = nn.Linear(8, 2)
first = torch.optim.AdamW(model.parameters(), lr=1e-3)
rate = first.param_groups[0]["lr"]
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
