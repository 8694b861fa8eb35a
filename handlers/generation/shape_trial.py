"""Compiles shapes to find out whether it ends: in a process of its own, as that can be ended.

`structure.py` starts it. It reads a line of JSON for each shape, and answers with one: the reason
against the shape, or "", and the seconds of a CPU that it took. If a shape takes more than its
time, the kernel ends the process.
"""

import json
import signal
import sys
import threading
import time
from typing import Any, BinaryIO, Final

#: llguidance follows rules and `$ref`s by recursion. Only what is used takes memory.
STACK_BYTES: Final = 256 * 2**20
#: Lower than llguidance's own: a mask is computed in a step, for which all answers wait, and the
#: states of a matcher take memory.
LIMITS: Final[dict[str, Any]] = {
    "initial_lexer_fuel": 100_000, "max_lexer_states": 50_000, "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
}  # fmt: skip


def compiled(tokenizer: Any, text: str, *, regex: bool) -> tuple[Any, str]:
    """Return the matcher of a shape, and llguidance's reason against it; "" for none."""
    from llguidance import LLMatcher, LLParserLimits

    convert = LLMatcher.grammar_from_regex if regex else LLMatcher.grammar_from_lark
    try:
        grammar, limits = convert(text), LLParserLimits(**LIMITS)
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        # Now, and not in a step of the batch: the first one takes longest, and finds limits.
        matcher.compute_bitmask()
    except ValueError as error:
        return None, str(error)
    return matcher, matcher.get_error() if matcher.is_error() else ""


def serve(shapes: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the parent has gone."""
    from llguidance import LLTokenizer

    tokenizer, eos, most_s = json.loads(shapes.readline())
    compiler = LLTokenizer(tokenizer, eos_token=eos)
    answers.write(b"\n")
    answers.flush()
    for line in shapes:
        text, regex = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, most_s)
        before_s = time.thread_time()
        _, reason = compiled(compiler, text, regex=regex)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer = (reason, time.thread_time() - before_s)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve, args=(sys.stdin.buffer, sys.stdout.buffer))
    thread.start()
    thread.join()
