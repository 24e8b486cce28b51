# ShardedGradScaler with its arguments named

from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

scaler = ShardedGradScaler("cuda", init_scale=2.0**14, growth_factor=2.0, backoff_factor=0.5)
