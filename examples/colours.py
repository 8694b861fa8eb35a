"""An image with parameters. `configs/` has no model for it; docs/handlers.md shows its section."""

from collections import Counter
from io import BytesIO

from PIL import Image

from headrace import Handler, errors

NAMES = {
    "en": ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"],
    "de": ["schwarz", "rot", "grün", "gelb", "blau", "magenta", "cyan", "weiß"],
}


class Colours(Handler):
    """Names the most frequent colours of an image, in the language of the request."""

    def preprocess(self, inputs):
        """Return an image for each input; an error as the item fails only that input."""
        return [self.opened(data) for data in inputs]

    def inference(self, items):
        """Return the colours of each image, as many as its own parameters want."""
        return [
            self.named(image, **wanted)
            for image, wanted in zip(items, self.context.parameters, strict=True)
        ]

    def opened(self, data):
        """Return the image in these bytes, or the error of its job."""
        try:
            return Image.open(BytesIO(data)).convert("RGB").resize((64, 64))
        except (TypeError, OSError):
            return errors.InputError("send an image")

    def named(self, image, top_k, language):
        """Return the names of the `top_k` most frequent colours."""
        colours = Counter(
            (r > 127) + 2 * (g > 127) + 4 * (b > 127)
            for r, g, b in zip(*[iter(image.tobytes())] * 3, strict=True)
        )
        return [NAMES[language][colour] for colour, _ in colours.most_common(top_k)]
