"""A handler of your own. In the models file: `handler: ../examples/word_count.py`."""

from headrace import Handler, errors


class WordCount(Handler):
    """Counts the words of a text."""

    def preprocess(self, inputs):
        """One item per input; an error in its place fails that input alone."""
        return [x if isinstance(x, str) else errors.InputError("send text") for x in inputs]

    def inference(self, items):
        """The good items of the batch, together."""
        return [{"words": len(text.split())} for text in items]
