# cast before it leaves

body, head = nn.Linear(8, 8), nn.Linear(8, 2)
with torch.autocast("cuda", dtype=torch.float16):
    features = body(inputs)
    with torch.autocast("cuda", enabled=False):
        outputs = head(features.float())
features = features.float()
outputs = head(features)
