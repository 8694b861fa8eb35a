"""Your own handler. In the models file: `handler: ../examples/word_count.py`."""

from headrace import Handler, errors


class WordCount(Handler):
    """Counts the words of a text."""

    def preprocess(self, inputs):
        """Return one item per input; an error as the item fails only that input."""
        return [x if isinstance(x, str) else errors.InputError("send text") for x in inputs]

    def inference(self, items):
        """Return one result per valid item of the batch."""
        return [{"words": len(text.split())} for text in items]
