# a subclass, whose base others rely on

class NativeScaler(torch.cuda.amp.GradScaler):
    state_dict_key = "amp_scaler"
