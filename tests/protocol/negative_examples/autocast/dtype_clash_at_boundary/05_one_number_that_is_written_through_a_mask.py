# one number that is written through a mask

body = nn.Linear(8, 8)
memory = torch.zeros(10, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = body(inputs)
    memory[memory > 1] = y.mean()
