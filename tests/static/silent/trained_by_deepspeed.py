# No AMP501: DeepSpeed updates float32 copies of what is loaded in float16.
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def main(path, texts):
    arguments = TrainingArguments("out", deepspeed="ds_config.json", num_train_epochs=1)
    model = AutoModelForCausalLM.from_pretrained(path, torch_dtype=torch.float16)
    model.to("cuda")
    trainer = Trainer(model=model, args=arguments, train_dataset=texts)
    trainer.train()


if __name__ == "__main__":
    main("base", [])
