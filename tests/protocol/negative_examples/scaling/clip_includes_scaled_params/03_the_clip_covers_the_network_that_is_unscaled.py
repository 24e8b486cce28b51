# the clip covers the network that is unscaled, and the other one is not clipped

import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(16, 4), nn.Linear(16, 1)
actor_optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 4), torch.randn(32, 1)) for _ in range(8)]

for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(actor(x), action) + nn.functional.mse_loss(critic(x), value)
    scaler.scale(loss).backward()
    scaler.unscale_(actor_optimizer)
    nn.utils.clip_grad_norm_(actor.parameters(), max_norm=0.5)
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
