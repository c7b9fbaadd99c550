#!/usr/bin/env python3
"""Makes a PyTorch module of a policy file.

    policy_module.py POLICY.safetensors [--check CASES.json] [--save MODULE.pt]

The module maps the features and ids of candidates to the output of the policy's network, and with the terms of a contract's bid to
its score in units of eCPM: the same scores as `admix score`, to 1e-5 of the score or, where it is larger, of the lowest bid. Needs torch and safetensors.
"""

import argparse
import json
import sys

import torch
from safetensors import safe_open


class Policy(torch.nn.Module):
    """The actor: embeddings, two hidden layers, one output; and a contract's bid."""

    def __init__(self, path):
        super().__init__()
        with safe_open(path, "pt") as file:
            self.head = json.loads(file.metadata()["admix"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}
        if self.head["format"] != "admix-policy-1":
            sys.exit(f"{path}: format {self.head['format']}, this script reads admix-policy-1")
        tables = sorted((n for n in arrays if n.startswith("actor.embedding")), key=lambda n: int(n[len("actor.embedding"):] or 0))
        self.tables = torch.nn.ParameterList(torch.nn.Parameter(arrays[n], requires_grad=False) for n in tables)
        self.layers = torch.nn.ModuleList()
        for k in (1, 2, 3):
            weights, bias = arrays[f"actor.w{k}"], arrays[f"actor.b{k}"]
            layer = torch.nn.Linear(*weights.shape)
            with torch.no_grad():
                layer.weight.copy_(weights.T)
                layer.bias.copy_(bias)
            self.layers.append(layer)

    def forward(self, features, ids=None):
        """features [rows, features], ids [rows, tables] -> outputs [rows]."""
        columns = [features]
        for t, table in enumerate(self.tables):
            index = ids[:, t]
            columns.append(table[torch.where(index < table.shape[0], index, 0)])
        x = torch.cat(columns, 1)
        x = torch.relu(self.layers[0](x))
        x = torch.relu(self.layers[1](x))
        return self.layers[2](x)[:, 0]

    def score(self, features, ids, terms):
        """Scores of contracts in units of eCPM before boosts; terms [rows, 6] in double precision: start of the bid's logit,
        what is added to it, the lowest and the highest bid, the share of the next impression that is owed, worth of the click."""
        start, lift, low, high, owed, click = terms.double().unbind(1)
        share = torch.sigmoid(start + lift + self(features, ids).double())
        return 1000.0 * (low + (high * owed - low) * share + click)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy")
    parser.add_argument("--check", metavar="CASES.json", help="features, ids, terms and scores, to be reproduced")
    parser.add_argument("--save", metavar="MODULE.pt", help="save the module's state")
    arguments = parser.parse_args()
    policy = Policy(arguments.policy).eval()
    if arguments.check:
        cases = json.load(open(arguments.check))
        ids = torch.tensor(cases["ids"], dtype=torch.long)
        with torch.no_grad():
            terms = torch.tensor(cases["terms"], dtype=torch.float64)
            scores = policy.score(torch.tensor(cases["features"]), ids, terms)
        expected = torch.tensor(cases["scores"], dtype=torch.float64)
        # Where bids may be negative, a score is the small difference of large terms: it is held against the lowest bid.
        scale = torch.maximum(expected.abs(), 1000.0 * terms[:, 2].abs()).clamp(min=1.0)
        off = ((scores - expected).abs() / scale).max().item()
        print(f"{len(scores)} scores, off by {off:.2e} at most")
        if not off <= 1e-5:
            sys.exit(1)
    if arguments.save:
        torch.save(policy.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
