# inference

model = Net()
model.load_state_dict(torch.load("model.pt"))
model.half().eval()
with torch.inference_mode():
    output = model(inputs.half())
