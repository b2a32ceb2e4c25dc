"""Train the model of a Hugging Face Trainer over clients, with the Trainer's own loss."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import fedkeel as fk

torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
net = BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=2, **size))
trainer = Trainer(net, TrainingArguments("unused", label_smoothing_factor=0.1, report_to="none", use_cpu=True))

# Sequences of tokens. The class says whether token 7 occurs.
tokens = torch.randint(8, 20, (400, 12))
labels = torch.randint(0, 2, (400,))
tokens[labels == 1, 3] = 7
clients = [(tokens[i::8], labels[i::8]) for i in range(8)]
fed = fk.Federation.from_arrays(clients)

model, step = fk.from_trainer(trainer)
method = fk.algorithm("local-adam", lr=0.005)
run = fk.train(model, fed, method, rounds=12, cohort=8, local_steps=4, step=step, validation=0.2, progress=False)
print(run)
assert run.history[-1]["val_loss"] < run.history[0]["val_loss"]
