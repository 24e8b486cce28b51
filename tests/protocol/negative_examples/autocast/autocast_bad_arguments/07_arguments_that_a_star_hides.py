# arguments that a star hides

def forward(self, inputs):
    with torch.autocast(**self.autocast_kwargs):
        return self.model(inputs)
