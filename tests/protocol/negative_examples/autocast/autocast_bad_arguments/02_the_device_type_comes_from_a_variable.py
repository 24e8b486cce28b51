# the device type comes from a variable

def train_step(model, inputs, device_type, dtype):
    with torch.autocast(device_type, dtype=dtype):
        return model(inputs)
