# a float32 average of low-precision values

model = nn.Linear(8, 1)
mean = torch.zeros(1)
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        score = model(inputs).mean()
    mean.mul_(0.99).add_(score, alpha=0.01)
    mean = 0.99 * mean + 0.01 * score
