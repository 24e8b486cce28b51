# sums with out= cast, and products of float32 stay float32

body = nn.Linear(8, 8)
memory, weight = torch.zeros(8, 8), torch.randn(8, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = body(inputs)
    torch.add(y, y, out=memory)
    torch.mm(weight, weight, out=memory)
    memory.addmm_(weight, weight)
    memory = torch.addmm(memory, y, weight)
    product = y.new_zeros(8, 8)
    torch.mm(y, y, out=product)
