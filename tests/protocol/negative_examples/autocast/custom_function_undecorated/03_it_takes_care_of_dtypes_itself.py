# it takes care of dtypes itself

class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.to(weight.dtype)
        return grad.mm(weight), grad.t().mm(x.to(weight.dtype))


weight = torch.nn.Parameter(torch.randn(2, 8))
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(Linear.apply(inputs, weight), targets)
loss.backward()
