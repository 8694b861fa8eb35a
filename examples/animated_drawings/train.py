"""Train the detector and the pose model on drawings of the generator, and write their weights.

    python examples/animated_drawings/train.py

On two busy cores it takes 40 minutes. Prints how good they are on drawings that they have not
seen. `--check` only prints that.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from generator import Drawing, drawing
from images import tensor
from networks import (
    CLASSES,
    CLOSE_PX,
    JOINTS,
    POSE_PX,
    SCENE_PX,
    STRIDE,
    Detector,
    Pose,
    around,
    overlap,
    square,
    view,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WEIGHTS = Path(__file__).parent / "weights"
#: Seeds of drawings that no training sees.
HELD_OUT = 1_000_000
BATCH = 24
#: Of the second stage and of the pose model: views of one drawing.
VIEWS = 2


class Samples(IterableDataset[tuple[Tensor, ...]]):
    """Endless drawings with what the networks should say of them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        worker = get_worker_info()
        number, step = (worker.id, worker.num_workers) if worker else (0, 1)
        while True:
            random = np.random.default_rng([self.seed, number, 1])
            sheet = drawing([self.seed, number])
            number += step
            if sheet.things and sheet.things[0].joints is not None:
                yield (*scene(sheet), *close(sheet, random), *pose(sheet, random))


def scene(sheet: Drawing) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the first stage's input, centres, sides, and where sides count."""
    image = tensor(sheet.image)
    frame = square(image)[0].numpy()
    scale = SCENE_PX / (frame[2] - frame[0])
    side = SCENE_PX // STRIDE
    centres, sides, counts = (
        np.zeros((len(CLASSES), side, side), np.float32),
        np.zeros((4, side, side), np.float32),
        np.zeros((side, side), np.float32),
    )
    places = np.arange(side) + 0.5
    for thing in sheet.things:
        box = ((np.array(thing.box) - np.tile(frame[:2], 2)) * scale) / STRIDE
        x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        spread = max(0.8, 0.07 * math.sqrt((box[2] - box[0]) * (box[3] - box[1])))
        column, row = min(int(x), side - 1), min(int(y), side - 1)
        heat = np.exp(
            -((places[None] - column - 0.5) ** 2 + (places[:, None] - row - 0.5) ** 2)
            / (2 * spread**2)
        )
        label = CLASSES.index(thing.label)
        centres[label] = np.maximum(centres[label], heat)
        for r in range(max(row - 1, 0), min(row + 2, side)):
            for c in range(max(column - 1, 0), min(column + 2, side)):
                sides[:, r, c] = (
                    np.array(
                        [c + 0.5 - box[0], r + 0.5 - box[1], box[2] - c - 0.5, box[3] - r - 0.5]
                    )
                    / side
                )
                counts[r, c] = 1
    return (
        view(image, square(image), SCENE_PX)[0],
        *map(torch.from_numpy, (centres, sides, counts)),
    )


def close(sheet: Drawing, random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return the second stage's views, masks and sides: boxes as inexact as proposals are."""
    image = tensor(sheet.image)
    views, masks, shares = [], [], []
    for index in [0, int(random.integers(len(sheet.things)))][:VIEWS]:
        thing = sheet.things[index]
        box = torch.tensor([thing.box], dtype=torch.float32)
        size = (box[:, 2:] - box[:, :2]).repeat(1, 2)
        at = around(
            box + size * torch.from_numpy(random.normal(0, 0.05, (1, 4)).astype(np.float32))
        )
        mask = torch.from_numpy(np.asarray(thing.mask, np.float32) / 255)[None]
        views.append(view(image, at, CLOSE_PX)[0])
        masks.append(inside(mask, at, CLOSE_PX))
        shares.append(((box - at[:, :2].repeat(1, 2)) / (at[:, 2:] - at[:, :2]).repeat(1, 2))[0])
    return torch.stack(views), torch.stack(masks), torch.stack(shares)


def inside(mask: Tensor, at: Tensor, side: int) -> Tensor:
    """Return a mask in a view; outside the drawing there is nothing."""
    margin = 400
    return view(F.pad(mask, (margin,) * 4), at + margin, side)[0, 0]


def pose(sheet: Drawing, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return the pose model's views and joints: crops as the detector makes them."""
    image = tensor(sheet.image)
    views, places = [], []
    figures = [(x, x.joints) for x in sheet.things if x.joints is not None]
    for index in range(VIEWS):
        thing, places_px = figures[index % len(figures)]
        left, top, right, bottom = thing.box
        noise = random.normal(0, 0.03, 4) * np.array([right - left, bottom - top] * 2)
        cut = np.array(thing.box) + noise
        x0, y0 = np.maximum(cut[:2], 0).astype(int)
        x1, y1 = (int(v) + 1 for v in np.minimum(cut[2:], [image.shape[2], image.shape[1]]))
        crop = image[:, y0:y1, x0:x1]
        frame = square(crop)
        views.append(view(crop, frame, POSE_PX)[0])
        joints = torch.from_numpy(places_px.astype(np.float32)) - torch.tensor([x0, y0])
        places.append((joints - frame[0, :2]) / (frame[0, 2] - frame[0, 0]))
    return torch.stack(views), torch.stack(places)


def loss_of(detector: Detector, pose_model: Pose, batch: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the losses of the first stage, the second stage and the pose model."""
    scenes, centres, sides, counts, views, masks, shares, figures, joints = batch
    logits, reach = detector.proposals(scenes)
    chance = logits.sigmoid().clamp(1e-5, 1 - 1e-5)
    hit = centres == 1
    focal = torch.where(
        hit,
        -((1 - chance) ** 2) * chance.log(),
        -((1 - centres) ** 4) * chance**2 * (1 - chance).log(),
    )
    first = (
        focal.sum() / hit.sum()
        + 20 * ((reach - sides).abs() * counts[:, None]).sum() / counts.sum()
    )
    said, ends = detector.close(views.flatten(0, 1))
    masks, shares = masks.flatten(0, 1), shares.flatten(0, 1)
    likely = said.sigmoid()
    dice = 1 - (2 * (likely * masks).sum((1, 2)) + 1) / ((likely + masks).sum((1, 2)) + 1)
    second = (
        F.binary_cross_entropy_with_logits(said, masks)
        + dice.mean()
        + 20 * (ends - shares).abs().mean()
    )
    places, _ = pose_model(figures.flatten(0, 1))
    third = 20 * (places - joints.flatten(0, 1)).abs().mean()
    return first, second, third


def train(steps: int, seed: int, workers: int) -> tuple[Detector, Pose]:
    """Train both networks on the same drawings."""
    torch.manual_seed(seed)
    detector, pose_model = Detector(len(CLASSES)), Pose(len(JOINTS))
    networks = nn.ModuleList([detector, pose_model]).train().to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(networks.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 3e-3, total_steps=steps, pct_start=0.08
    )
    batches = iter(
        DataLoader(Samples(seed), BATCH, num_workers=workers, persistent_workers=workers > 0)
    )
    means = np.zeros(3)
    for step in range(1, steps + 1):
        with torch.autocast("cpu", torch.bfloat16):
            losses = loss_of(detector, pose_model, next(batches))
        optimiser.zero_grad()
        sum(losses).backward()  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(networks.parameters(), 5.0)
        optimiser.step()
        schedule.step()
        means = means * 0.98 + 0.02 * np.array([float(x.detach()) for x in losses])
        if step % 50 == 0:
            parts = zip(("proposals", "close", "pose"), means / (1 - 0.98**step), strict=True)
            losses_text = ", ".join(f"{name} {mean:.3f}" for name, mean in parts)
            print(f"step {step} of {steps}: {losses_text}", flush=True)
    return detector.eval(), pose_model.eval()


def check(detector: Detector, pose_model: Pose, count: int) -> dict[str, float]:
    """Return shares of held-out humanoids that are right.

    Returns:
        `box`: an IoU of at least 0.9; `mask`: the mean IoU of masks; `joints`: joints within 5 %
        of the figure's height, with the box that the detector found.
    """
    boxes, masks, joints = [], [], []
    for number in range(count):
        sheet = drawing([HELD_OUT, number])
        image = tensor(sheet.image)
        result = detector([image])[0]
        for thing in sheet.things:
            if thing.joints is None:
                continue
            truth = torch.tensor(thing.box, dtype=torch.float32)
            of_class = result.labels == CLASSES.index("humanoid")
            overlaps = (
                overlap(truth, result.boxes) * of_class if len(result.boxes) else torch.zeros(1)
            )
            best = int(overlaps.argmax())
            boxes.append(float(overlaps[best]) >= 0.9)
            if overlaps[best] < 0.5:
                masks.append(0.0)
                joints.extend([False] * len(JOINTS))
                continue
            mask = torch.from_numpy(np.asarray(thing.mask, np.float32) / 255)[None]
            true = inside(mask, result.views[best : best + 1], CLOSE_PX) > 0.5
            said = result.masks[best] > 0.5
            masks.append(float((true & said).sum() / (true | said).sum()))
            left, top, right, bottom = (round(float(x)) for x in result.boxes[best])
            left, top = max(left, 0), max(top, 0)
            crop = image[:, top:bottom, left:right]
            frame = square(crop)
            with torch.inference_mode():
                places, _ = pose_model(view(crop, frame, POSE_PX))
            where = (
                places[0] * (frame[0, 2] - frame[0, 0]) + frame[0, :2] + torch.tensor([left, top])
            )
            away = (where - torch.from_numpy(thing.joints.astype(np.float32))).norm(dim=1)
            joints.extend((away <= 0.05 * (truth[3] - truth[1])).tolist())
    return {
        "box": float(np.mean(boxes)),
        "mask": float(np.mean(masks)),
        "joints": float(np.mean(joints)),
    }


def main() -> None:
    """Train, write the weights, and print how good they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that draw")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--count", type=int, default=500, help="held-out drawings")
    arguments = parser.parse_args()
    if arguments.check:
        detector, pose_model = Detector(len(CLASSES)), Pose(len(JOINTS))
    else:
        detector, pose_model = train(arguments.steps, arguments.seed, arguments.workers)
        WEIGHTS.mkdir(exist_ok=True)
        for name, network in (("detector", detector), ("pose", pose_model)):
            state = network.to(memory_format=torch.contiguous_format).half().state_dict()
            save_file(state, WEIGHTS / f"{name}.safetensors")
            network.float()
    for name, network in (("detector", detector), ("pose", pose_model)):
        file = WEIGHTS / f"{name}.safetensors"
        network.load_state_dict(load_file(file))  # copied into the network's float32
        network.eval()
        print(f"{file.name}: {file.stat().st_size:,} bytes")
    for name, share in check(detector, pose_model, arguments.count).items():
        print(f"held-out, {name}: {share:.3f}")


if __name__ == "__main__":
    main()
