# nested regions, each with an object of its own

class Block(nn.Module):
    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = self.attention(x)
            with torch.autocast("cuda", enabled=False):
                return self.norm(x.float())
