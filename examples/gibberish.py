"""A text model: tells text from gibberish. In the models file: `handler: gibberish.py`.

A letter-trigram model in torch: the log-probability of each letter after the two letters before it.
It is trained when it loads, in less than a second. The text comes with Python: the prose of
`pydoc_data.topics`, about 190,000 letters of English on programming. Run this file to measure its
accuracy on the first 20 letters of held-out sentences, and on the same letters shuffled.

It ignores meaning and other languages; it detects random typing in a form.
"""

from __future__ import annotations

import random
import re
from pydoc_data import topics

import torch

from headrace import Handler, errors

LETTERS = " abcdefghijklmnopqrstuvwxyz"
MIN_LETTERS = 8
MAX_LETTERS = 2000
#: One sentence in HELD_OUT is not used for training.
HELD_OUT = 10
SNIPPET_LETTERS = 20


def letters(text: str) -> str:
    """Return the text in lower case, with one space for all other characters."""
    return re.sub(r"[^a-z]+", " ", text.lower()).strip()


def sentences() -> list[str]:
    """Return the sentences of all paragraphs that are not indented."""
    found = []
    for topic in topics.topics.values():
        for paragraph in topic.split("\n\n"):
            if re.match(r"[A-Z*\"]", paragraph) and "\n***" not in paragraph:
                found += [letters(sentence) for sentence in re.split(r"[.:;]\s", paragraph)]
    return [sentence for sentence in found if len(sentence) >= 30]


def shuffled(sentence: str, seed: int) -> str:
    """Return the same letters in random order."""
    mixed = list(sentence)
    random.Random(seed).shuffle(mixed)  # noqa: S311 - no secret
    return letters("".join(mixed))


class Gibberish(Handler):
    """Returns `{"gibberish": true, "score": -4.1}`: the mean log-probability of a letter."""

    def initialize(self, context):
        """Count trigrams and set the threshold with the best accuracy."""
        super().initialize(context)
        training = [text for n, text in enumerate(sentences()) if n % HELD_OUT]
        counts = torch.ones(len(LETTERS) ** 3, dtype=torch.float64)
        for text in training:
            trigrams = self.trigrams(text)
            counts.index_add_(0, trigrams, torch.ones(len(trigrams), dtype=torch.float64))
        pairs = counts.view(-1, len(LETTERS))
        self.table = (pairs / pairs.sum(dim=1, keepdim=True)).log().flatten()
        some = training[::7]
        real = torch.tensor([self.score(text) for text in some])
        mixed = torch.tensor([self.score(shuffled(text, n)) for n, text in enumerate(some)])
        edges = torch.linspace(float(mixed.mean()), float(real.mean()), 200)
        right = [float((real > edge).sum() + (mixed <= edge).sum()) for edge in edges]
        self.threshold = float(edges[right.index(max(right))])

    def preprocess(self, inputs):
        """Return the trigram numbers of each text; an input that is not text fails alone."""
        return [self.item(text) for text in inputs]

    def inference(self, items):
        """Return the mean log-probability of each text, computed for the whole batch at once."""
        lengths = torch.tensor([len(item) for item in items])
        owner = torch.repeat_interleave(torch.arange(len(items)), lengths)
        sums = torch.zeros(len(items), dtype=torch.float64)
        return sums.index_add_(0, owner, self.table[torch.cat(list(items))]) / lengths

    def postprocess(self, outputs):
        """Return the results for the scores."""
        return [{"gibberish": s <= self.threshold, "score": round(s, 3)} for s in outputs.tolist()]

    def item(self, text):
        """Return the trigrams of one input, or its error."""
        if not isinstance(text, str):
            return errors.InputError("send text")
        cleaned = letters(text)
        if len(cleaned) < MIN_LETTERS:
            return errors.InputError(f"send at least {MIN_LETTERS} letters of a to z")
        return self.trigrams(cleaned[:MAX_LETTERS])

    def score(self, text: str) -> float:
        """Return the score of one cleaned text."""
        return float(self.table[self.trigrams(text)].mean())

    @staticmethod
    def trigrams(text: str) -> torch.Tensor:
        """Return the number of each trigram, in 0..27 ** 3."""
        number = torch.tensor([LETTERS.index(letter) for letter in text])
        return (number[:-2] * len(LETTERS) + number[1:-1]) * len(LETTERS) + number[2:]


def held_out_accuracy(handler: Gibberish) -> tuple[float, int]:
    """Return the number of correct answers on held-out snippets, half of them shuffled, and all."""
    unseen = [text[:SNIPPET_LETTERS] for text in sentences()[::HELD_OUT]]
    right = sum(handler.score(text) > handler.threshold for text in unseen)
    right += sum(
        handler.score(shuffled(text, -n)) <= handler.threshold for n, text in enumerate(unseen)
    )
    return right / (2 * len(unseen)), 2 * len(unseen)


if __name__ == "__main__":
    model = Gibberish()
    model.initialize(None)
    accuracy, texts = held_out_accuracy(model)
    print(f"correct on {accuracy:.1%} of {texts} held-out snippets of {SNIPPET_LETTERS} letters")
