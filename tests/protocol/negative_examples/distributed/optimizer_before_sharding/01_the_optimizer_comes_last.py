# the optimizer comes after the last call that shards

from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
