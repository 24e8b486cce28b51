# the mixed precision of FSDP keeps its shards in float32

from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = FullyShardedDataParallel(Net(), mixed_precision=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
