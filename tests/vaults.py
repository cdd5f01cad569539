"""A task of any length that needs no file: one code, somewhere in the rain."""

import random

from memagent_graph.evaluation.samples import Sample, Task

RAIN = "It rained over the harbour again, and nobody came.\n"


class VaultTask(Task):
    """Any number of questions, each for the code of one vault."""

    identity = "vault 1"

    def __init__(self, name="vault"):
        self.name = name

    def sample(self, length, index, *, seed, tokenizer):
        chance = random.Random(f"{self.name} {length} {index} {seed}")
        code = str(chance.randrange(10**6, 10**7))
        lines = length // tokenizer.count(RAIN)
        before = chance.randrange(lines)

        def pieces():
            for line in range(lines):
                yield f"The code of the vault is {code}.\n" if line == before else RAIN

        question = "What is the code of the vault?"
        name = f"{self.name}/{length}/{index}"
        return Sample(name, self.name, length, question, (code,), "any", pieces)
