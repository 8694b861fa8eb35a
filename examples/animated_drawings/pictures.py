"""Make the pictures of docs/case-study.md, from a server that runs the pipeline.

headrace up --models examples/animated_drawings/models.yaml
python examples/animated_drawings/pictures.py docs/images
"""

import base64
import io
import sys
from pathlib import Path

import yaml
from PIL import Image, ImageDraw

from headrace import Client

HERE = Path(__file__).resolve().parent
ROW_PX = 200
INK = (37, 99, 235)


def main(folder: Path) -> None:
    """Write drawing-stages.png and drawing-dances.gif."""
    rows = []
    with Client() as client:
        for result in client.map("drawing", sorted((HERE / "drawings").glob("*.jpg"))):
            rows.append(stages(Image.open(result.input), result.value))
            if result.input.stem == "hat":
                dance = base64.b64decode(result.value["dance"]["base64"])
                (folder / "drawing-dances.gif").write_bytes(dance)
    width = max(sum(picture.width + 12 for picture in row) for row in rows)
    sheet = Image.new("RGB", (width, (ROW_PX + 12) * len(rows)), "white")
    for n, row in enumerate(rows):
        x = 0
        for picture in row:
            sheet.paste(picture, (x, n * (ROW_PX + 12)))
            x += picture.width + 12
    sheet.quantize(128).save(folder / "drawing-stages.png", optimize=True)


def stages(drawing: Image.Image, result: dict) -> list[Image.Image]:
    """Return the drawing, the figure, its mask with its joints, and moments of the dance."""
    character = result["character"]
    texture, mask = (opened(character[name]) for name in ("texture", "mask"))
    figure = texture.convert("RGB")
    covered = Image.composite(figure, Image.new("RGB", figure.size, (226, 232, 240)), mask)
    draw = ImageDraw.Draw(covered)
    joints = yaml.safe_load(character["char_cfg"])["skeleton"]
    at = {joint["name"]: tuple(joint["loc"]) for joint in joints}
    for joint in joints:
        if joint["parent"]:
            draw.line((at[joint["parent"]], at[joint["name"]]), fill=INK, width=2)
    for x, y in at.values():
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=INK)
    dance = opened(result["dance"])
    frames = []
    for n in (0, 6, 14):
        dance.seek(n)
        frames.append(dance.convert("RGB"))
    pictures = [drawing.convert("RGB"), figure, covered, *frames]
    return [p.resize((round(p.width * ROW_PX / p.height), ROW_PX)) for p in pictures]


def opened(part: dict) -> Image.Image:
    """Return the image of a part of a result."""
    return Image.open(io.BytesIO(base64.b64decode(part["base64"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
