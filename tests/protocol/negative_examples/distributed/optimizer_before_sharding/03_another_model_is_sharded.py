# the sharded model is another one, which is not trained

from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

model, teacher = nn.Linear(8, 2), nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fully_shard(teacher)

for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
