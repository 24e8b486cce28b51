# a buffer of the tensor's own dtype

body = nn.Linear(8, 8)
with torch.autocast("cuda", dtype=torch.float16):
    y = body(inputs)
    memory = torch.zeros(10, 8, dtype=y.dtype)
    memory.index_add_(0, index, y)
    memory = y.new_zeros(10, 8)
    memory.index_add_(0, index, y)
