# the device type of a vendor's back end

import torch_npu

with torch.autocast("npu", dtype=torch.float16):
    output = model(inputs)
