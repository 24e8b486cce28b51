# a model that is in low precision itself

body, head = nn.Linear(8, 8), nn.Linear(8, 2)
head.half()
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    features = body(inputs)
outputs = head(features)
