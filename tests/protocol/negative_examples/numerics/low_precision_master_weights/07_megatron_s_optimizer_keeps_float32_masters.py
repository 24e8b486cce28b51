# Megatron's optimizer keeps float32 masters

from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

model = GPTModel(config).bfloat16()
optimizer = get_megatron_optimizer(OptimizerConfig(bf16=True, lr=1e-4), [model])
for batch in loader:
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
