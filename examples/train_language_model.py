"""Train the built-in language model `python_docs` and write its folder; 40 minutes on two cores.

    PYTHONPATH=. python examples/train_language_model.py

The text is the documentation inside Python itself: the topics of `help()` and the docstrings of the
standard library. The model learns them by heart; it shows how Headrace serves a language model, and
knows little else. Needs the extras `dev` and `generation`. The result depends on the version of
Python. Prints some answers at the end.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from types import ModuleType
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FOLDER = Path(__file__).parent.parent / "handlers" / "weights" / "python_docs"
VOCABULARY = 2048
ROW_TOKENS = 256
ROWS = 32
#: Of an answer, in characters; rows are a little longer than that.
ANSWER_MAX = 600
PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('unknown role ' ~ message.role) }}{% endif %}"
    "{{ '<|' ~ message.role ~ '|>' ~ message.content | trim ~ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

QUESTIONS = ("What is {}?", "What does {} do?", "Explain {}.", "Tell me about {}.", "{}")

#: Modules that do something when they are imported, or are not there for programs.
NOT_READ = {"antigravity", "this", "idlelib", "test", "tkinter", "turtle", "turtledemo", "lib2to3"}


def main() -> None:
    """Train the model, write its folder and print some answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    chance = random.Random(arguments.seed)  # noqa: S311 - not for secrets
    answers = dict(docstrings())
    texts = paragraphs()
    print(f"{len(answers):,} docstrings, {len(texts):,} pieces of the topics")
    tokenizer = train_tokenizer([*answers.values(), *answers, *texts])
    model = train(tokenizer, answers, texts, arguments.steps, chance)
    write(model, tokenizer, arguments.folder)
    for question in ("What does zip do?", "Tell me about the yield statement."):
        print(f"\n{question}\n{answer(model, tokenizer, question)}")


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield names of the standard library with the beginning of their docstrings."""
    warnings.simplefilter("ignore")
    for name in sorted(sys.stdlib_module_names - NOT_READ):
        if name.startswith("_"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for path, thing in things(name, module):
            text = inspect.getdoc(thing)
            if text and len(text) >= 20:
                yield path, shortened(text)


def things(name: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the module, its functions and classes, and their methods, with their names."""
    yield name, module
    for key, thing in vars(module).items():
        if key.startswith("_") or getattr(thing, "__module__", None) != name:
            continue
        path = key if name == "builtins" else f"{name}.{key}"
        yield path, thing
        if inspect.isclass(thing):
            for method in vars(thing):
                if not method.startswith("_") and callable(getattr(thing, method, None)):
                    yield f"{path}.{method}", getattr(thing, method)


def shortened(text: str) -> str:
    """Return the first paragraphs of a text, as many as fit."""
    taken = ""
    for paragraph in text.split("\n\n"):
        if taken and len(taken) + len(paragraph) > ANSWER_MAX // 2:
            break
        taken += ("\n\n" if taken else "") + paragraph
    return taken[:ANSWER_MAX]


def paragraphs() -> list[str]:
    """Return the topics of `help()`, cut at empty lines into pieces that fit into a row."""
    pieces: list[str] = []
    for text in topics.values():
        piece = ""
        for paragraph in text.split("\n\n"):
            if piece and len(piece) + len(paragraph) > ANSWER_MAX:
                pieces.append(piece)
                piece = ""
            piece += ("\n\n" if piece else "") + paragraph
        pieces.append(piece)
    return pieces


def statements() -> dict[str, str]:
    """Return the beginnings of topics about one thing, by the name in their headings."""
    found = {}
    for text in topics.values():
        heading, _, rest = text.partition("\n")
        found["the " + heading.replace('"', "").removeprefix("The ").lower()] = shortened(
            rest.lstrip("*=\n-")
        )
    return found


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of these texts, with the chat's special tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END, SYSTEM, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def train(
    tokenizer: PreTrainedTokenizerFast,
    answers: dict[str, str],
    texts: Sequence[str],
    steps: int,
    chance: random.Random,
) -> LlamaForCausalLM:
    """Train a new model on rows of whole texts; each epoch asks in other words."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=6,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.convert_tokens_to_ids(END),
            pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        )
    )
    print(f"{model.num_parameters():,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    batches = rows(tokenizer, answers, texts, chance)
    for step in range(steps):
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch).logits
        loss = F.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:,}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def rate(step: int, steps: int) -> float:
    """Return the share of the learning rate: a linear start, then half a cosine."""
    warm = min(100, steps // 10 + 1)
    if step < warm:
        return (step + 1) / warm
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


def rows(
    tokenizer: PreTrainedTokenizerFast,
    answers: dict[str, str],
    texts: Sequence[str],
    chance: random.Random,
) -> Iterator[Tensor]:
    """Yield batches of rows for ever, int64 [ROWS, ROW_TOKENS]; a row begins with a text."""
    asked = {**answers, **statements()}
    filled: list[list[int]] = []
    while True:
        epoch = [
            f"{USER}{chance.choice(QUESTIONS).format(name)}{END}{ASSISTANT}{text}{END}"
            for name, text in asked.items()
        ]
        epoch += [text + END for text in chance.sample(list(texts), len(texts) // 2)]
        chance.shuffle(epoch)
        row: list[int] = []
        for ids in tokenizer(epoch).input_ids:
            if row and len(row) + len(ids) > ROW_TOKENS:
                filled.append((row + [0] * ROW_TOKENS)[:ROW_TOKENS])
                row = []
            row += ids
            if len(filled) == ROWS:
                yield torch.tensor(filled)
                filled = []


def write(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder of the model, its weights in half precision."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.do_sample = False
    model.half().save_pretrained(folder)
    model.float()
    tokenizer.save_pretrained(folder)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":  # without spaces, the tokenizer is half as large
            text = json.dumps(json.loads(path.read_text()), ensure_ascii=False)
            path.write_text(text + "\n")
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def answer(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    """Return the model's answer to a question, greedily."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = model.generate(**prompt, max_new_tokens=150)
    return str(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    main()
