# a model whose forward is not in view may enter autocast itself

body = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    features = body(inputs)
outputs = decoder(features)
