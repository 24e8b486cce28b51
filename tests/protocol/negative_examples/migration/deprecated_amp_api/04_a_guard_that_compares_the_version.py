# a guard that compares the version

from packaging.version import Version

if Version(torch.__version__) >= Version("2.4"):
    custom_fwd = torch.amp.custom_fwd(device_type="cuda")
else:
    custom_fwd = torch.cuda.amp.custom_fwd
