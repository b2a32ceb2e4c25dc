"""LoRA: only adapters and head are trained and sent. The model here is tiny and random; take your own folder or name."""

import tempfile

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import fedkeel as fk

WORDS = ["[PAD]", "[UNK]", "good", "bad", "film", "the", "was", "very", "long"]


def tiny_model(folder: str) -> str:
    """A folder as `save_pretrained` writes it, with a model of two small blocks."""
    rules = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(folder)
    size = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": len(WORDS)}
    config = transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0, pad_token_id=0, initializer_range=0.5)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def client(i: int) -> tuple[list[str], list[int]]:
    return [f"the film was {'very ' * (k % 3)}{'good' if k % 2 else 'bad'}" for k in range(20 + i)], [
        k % 2 for k in range(20 + i)
    ]


fed = fk.Federation.from_arrays([client(i) for i in range(4)], test=client(10))
model = fk.lora(tiny_model(tempfile.mkdtemp()), fed, rank=4, length=12)
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"{trained:,} of {sum(p.numel() for p in model.parameters()):,} parameters are trained and sent")
run = fk.train(model, fed, fk.algorithm("fedit-adam", lr=0.01), rounds=5, cohort=4, progress=False)
print(f"accuracy {run.history[-1]['test_accuracy']:.3f}")
