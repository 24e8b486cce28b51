# apex keeps float32 masters

from apex.fp16_utils import FP16_Optimizer

model = Net().cuda().half()
optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), dynamic_loss_scale=True)
for inputs, targets in loader:
    optimizer.zero_grad()
    optimizer.backward(criterion(model(inputs.half()).float(), targets))
    optimizer.step()
