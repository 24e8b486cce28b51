# frozen parameters are cast on every use and never cached

teacher = Encoder(config).requires_grad_(False)


def distil(student, loader):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for inputs in loader:
            target = teacher(inputs)
            teacher.load_state_dict(student.state_dict())
            (student(inputs) - target - teacher(inputs)).square().mean().backward()
