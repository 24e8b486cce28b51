# CUDA's scatter_add promotes where it is not in place

body = nn.Linear(8, 8)
memory = torch.zeros(10, 8)
with torch.autocast("cuda", dtype=torch.float16):
    memory = memory.scatter_add(0, index, body(inputs))
