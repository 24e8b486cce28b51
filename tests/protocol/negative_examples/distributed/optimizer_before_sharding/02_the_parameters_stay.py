# use_orig_params=True keeps the parameters

from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

model = nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model = FullyShardedDataParallel(model, use_orig_params=True)

for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
