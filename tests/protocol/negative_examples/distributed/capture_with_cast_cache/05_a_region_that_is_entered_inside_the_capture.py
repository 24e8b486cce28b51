# a region that is entered inside the capture casts in the graph

graph = torch.cuda.CUDAGraph()
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        model(inputs)
with torch.cuda.graph(graph):
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(inputs)
