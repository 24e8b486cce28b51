# the running statistics of batch norm stay float32

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
for inputs in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        y = model(inputs)
