#!/usr/bin/env python3
"""Writes FOLDER/float64.safetensors: loss, logits and gradients of a folder's GPT-2 in float64 all the way (the cases of
case.safetensors are stored in float32, and transformers makes its own loss in float32): make_float64.py FOLDER ...
"""
import sys
import torch, transformers
from safetensors.torch import load_file, save_file

for folder in sys.argv[1:]:
    case = load_file(folder + "/case.safetensors")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder).double().eval()
    logits = model(input_ids=case["input_ids"], attention_mask=case.get("attention_mask")).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), case["labels"][:, 1:].flatten(), ignore_index=-100)
    loss.backward()
    out = {"loss": loss.detach().reshape(1), "logits": logits.detach().contiguous()}
    out.update({"grad." + name: p.grad for name, p in model.named_parameters()})
    save_file(out, folder + "/float64.safetensors")
