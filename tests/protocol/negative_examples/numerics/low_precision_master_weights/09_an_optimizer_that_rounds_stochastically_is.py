# an optimizer that rounds stochastically is made for bfloat16 weights

from torchao.optim import AdamW8bit

model = Net().to(torch.bfloat16)
optimizer = AdamW8bit(model.parameters(), lr=1e-4, bf16_stochastic_round=True)
for inputs, targets in loader:
    optimizer.zero_grad()
    criterion(model(inputs.bfloat16()).float(), targets).backward()
    optimizer.step()
