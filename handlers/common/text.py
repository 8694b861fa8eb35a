"""The numbers of text models: text to tokens, and tokens to the ids of a vocabulary.

Shared by the built-in handlers and those of extensions. The steps and their order are those of
TorchServe's text classifier. A model answers right only for text that is prepared as in its
training.
"""

from __future__ import annotations

import logging
import re
import string
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from headrace.errors import ConfigError, InputError

logger = logging.getLogger(__name__)

#: The vocabulary's file in an archive.
VOCABULARY_FILE: Final = "source_vocab.pt"
#: The longest n-grams of tokens that are looked up in the vocabulary.
NGRAMS: Final = 2
#: The vocabulary's own word for words that it does not have.
UNKNOWN: Final = "<unk>"

_TAG: Final = re.compile(r"<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)

#: What follows `n't`, by the word before it; "" where only a form of its own is common.
_NOT: Final = {
    "ai": "is", "are": "are", "could": "could", "did": "did", "does": "does", "do": "do",
    "had": "had", "has": "has", "have": "have", "is": "is", "may": "may", "might": "might",
    "must": "must", "need": "need", "ought": "ought", "should": "should", "was": "was",
    "were": "were", "would": "would", "ca": "can", "sha": "shall", "wo": "will",
}  # fmt: skip
#: Each ending, its full word, and the words that it follows.
_ENDINGS: Final = (
    ("'m", "am", "i"),
    ("'re", "are", "they we what you"),
    ("'ve", "have", "could i might must should so they to we what when where who why will would "
     "you"),
    ("'ll", "will", "he how i it she they we what who you"),
    ("'d", "would", "he i it she that there they we you"),
    ("'d", "did", "how where"),
    ("'s", "is", "he how it she that there what when where who why"),
)  # fmt: skip
_OWN_FORMS: Final = {
    "'cause": "because",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "sha'n't": "shall not",
    "so's": "so as",
    "y'all": "you all",
}


def _contractions() -> dict[str, str]:
    """Return the contractions of English with their full forms.

    Of one that begins with another one, such as `can't've`, only the beginning is expanded, as in
    TorchServe. So the longer forms are not listed.
    """
    forms = dict(_OWN_FORMS)
    for before, verb in _NOT.items():
        forms[f"{before}n't"] = f"{verb} not" if before != "ca" else "cannot"
    for ending, word, befores in _ENDINGS:
        for before in befores.split():
            forms[before + ending] = f"{before} {word}"
    capital = {f"I{form[1:]}": f"I{full[1:]}" for form, full in forms.items() if form[:2] == "i'"}
    return forms | capital


CONTRACTIONS: Final = _contractions()
_CONTRACTION: Final = re.compile("|".join(map(re.escape, CONTRACTIONS)), re.IGNORECASE)


def without_tags(text: str) -> str:
    """Return a text without HTML tags and entities."""
    return _TAG.sub("", text)


def expanded(text: str) -> str:
    """Return a text with its contractions written out, and without other apostrophes."""
    return _CONTRACTION.sub(_expanded, text).replace("'", "")


def _expanded(found: re.Match[str]) -> str:
    form = found.group()
    full = CONTRACTIONS.get(form) or CONTRACTIONS[form.lower()]
    return form[0] + full[1:] if form[0].isalpha() else full


def without_accents(text: str) -> str:
    """Return the ASCII letters of a text: accents are dropped, and so is any other script."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


def without_punctuation(text: str) -> str:
    """Return a text without ASCII punctuation."""
    return text.translate(_NO_PUNCTUATION)


def tokens(text: str) -> list[str]:
    """Return the words of a cleaned text: HTML, case, contractions, accents, punctuation, space."""
    return without_punctuation(without_accents(expanded(without_tags(text).lower()))).split()


def ngrams(words: Sequence[str], most: int) -> Iterator[str]:
    """Yield the words, then their pairs, and so on up to `most` words, joined by a space."""
    yield from words
    for size in range(2, most + 1):
        for start in range(len(words) - size + 1):
            yield " ".join(words[start : start + size])


def token_ids(vocabulary: Any, words: Sequence[str], most: int = NGRAMS) -> Tensor:
    """Return the ids of the n-grams of words, (T).

    Args:
        vocabulary: ids by token: a mapping, or an object with the same brackets.

    Raises:
        InputError: there is no word, or one that the vocabulary lacks, and it has no `<unk>`.
    """
    if not words:
        raise InputError("the text has no words; send text with letters or digits")
    unknown = vocabulary.get(UNKNOWN) if isinstance(vocabulary, Mapping) else None
    found = []
    for token in ngrams(words, most):
        try:
            found.append(vocabulary[token])
        except (KeyError, RuntimeError):
            if unknown is None:
                raise InputError(
                    f"{token!r} is not in the model's vocabulary, which has no {UNKNOWN!r} for "
                    "such words"
                ) from None
            found.append(unknown)
    return torch.tensor(found, dtype=torch.long)


def load_vocabulary(path: Path, *, weights_only: bool = True) -> Any:
    """Return the vocabulary in a file that `torch.save` wrote.

    Args:
        weights_only: False runs the code in a file that holds more than mappings, lists and
            tensors.

    Raises:
        ConfigError: there is no such file, or it cannot be read so.
    """
    if not path.is_file():
        raise ConfigError(
            f"there is no vocabulary {path}",
            hint="save the ids by token there: torch.save({'<unk>': 0, 'word': 1}, …)",
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if weights_only:
            raise ConfigError(
                f"the vocabulary {path} cannot be read without running code in it: {error}",
                hint="save a plain mapping of ids by token, or trust the file: set the model's "
                "weights_only to false",
            ) from error
        logger.warning("code in %s is run, as the model has weights_only: false", path)
        found = torch.load(path, map_location="cpu", weights_only=False)
    if not hasattr(found, "__getitem__") or isinstance(found, (str, Tensor, list)):
        raise ConfigError(
            f"the vocabulary {path} holds a {type(found).__name__}, not ids by token",
            hint="save a mapping: torch.save({'<unk>': 0, 'word': 1}, …)",
        )
    return found
