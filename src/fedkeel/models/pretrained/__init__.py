"""Pretrained transformers with LoRA: `--model hf:NAME_OR_FOLDER`. Needs the extra `fedkeel[text]`."""
