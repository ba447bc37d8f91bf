"""A Hugging Face `Trainer` on a tiny randomly initialised model: an ordinary script."""

from __future__ import annotations

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    """The same random tokens on every run."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.randint(64, (count, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)  # the model is built before Trainer seeds anything
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=30, per_device_train_batch_size=2, use_cpu=True,
            gradient_accumulation_steps=2, report_to=[], save_strategy="no", disable_tqdm=True,
            seed=5,
        )  # fmt: skip
        trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens(400))
        result = trainer.train()
        if arguments.process_index == 0:
            print(f"loss {result.training_loss:.9f}", flush=True)


if __name__ == "__main__":
    main()
