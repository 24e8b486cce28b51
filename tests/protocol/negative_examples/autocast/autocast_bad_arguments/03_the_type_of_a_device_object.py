# the type of a device object

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
    output = model(inputs)
