"""A handler with its own preprocessing: finds the note in a WAV file.

In the models file: `handler: tone.py`. `preprocess` decodes on the CPU, one file at a time: any
sample rate, any number of channels, 8 to 32 bits. All items for `inference` have one shape, so a
batch is one Fourier transform. It is signal processing; nothing is trained.
"""

from __future__ import annotations

import io
import wave

import numpy as np
import torch

from headrace import Handler, errors

RATE_HZ = 8000
WINDOW = 8192
LOWEST_HZ, HIGHEST_HZ = 50, 2000
NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


class Tone(Handler):
    """Returns `{"note": "A4", "hz": 440.1}` for the loudest tone between 50 and 2,000 Hz."""

    def initialize(self, context):
        """Prepare the window function."""
        super().initialize(context)
        self.window = torch.hann_window(WINDOW, device=context.device)

    def preprocess(self, inputs):
        """Return one second of mono sound at 8 kHz per file; a broken file fails alone."""
        return [self.decode(data) for data in inputs]

    def inference(self, items):
        """Return the strength of each frequency for the whole batch."""
        sound = torch.stack(list(items)).to(self.context.device)
        return torch.fft.rfft(sound * self.window).abs().cpu()

    def postprocess(self, outputs):
        """Return the strongest frequency of each file, interpolated between bins."""
        low, high = (hz * WINDOW // RATE_HZ for hz in (LOWEST_HZ, HIGHEST_HZ))
        results = []
        for row in outputs:
            peak = int(row[low:high].argmax()) + low
            left, middle, right = (float(row[peak + step].log()) for step in (-1, 0, 1))
            shift = (left - right) / (2 * (left - 2 * middle + right))
            results.append(named((peak + shift) * RATE_HZ / WINDOW))
        return results

    def decode(self, data):
        """Return one file as a tensor of `WINDOW` samples, or its error."""
        if not isinstance(data, bytes):
            return errors.InputError("send the bytes of a WAV file")
        try:
            with wave.open(io.BytesIO(data)) as sound:
                parameters, raw = sound.getparams(), sound.readframes(sound.getnframes())
        except (wave.Error, EOFError) as error:
            return errors.InputError(f"not a WAV file that can be read: {error}")
        samples = mono(raw, parameters.sampwidth, parameters.nchannels)
        if len(samples) < parameters.framerate // 10:
            return errors.InputError("send at least a tenth of a second")
        seconds = np.arange(WINDOW) / RATE_HZ
        taken = np.interp(seconds, np.arange(len(samples)) / parameters.framerate, samples, right=0)
        if np.abs(taken).max() < 1e-3:
            return errors.InputError("the recording is silent")
        return torch.from_numpy(taken.astype(np.float32))


def mono(raw: bytes, width: int, channels: int) -> np.ndarray:
    """Return samples in -1..1, the mean of the channels."""
    if width == 1:
        values = np.frombuffer(raw, np.uint8).astype(np.float64) / 128 - 1
    elif width == 3:
        padded = np.zeros((len(raw) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw[: len(raw) // 3 * 3], np.uint8).reshape(-1, 3)
        values = padded.reshape(-1).view("<i4") / 2.0**31
    else:
        values = np.frombuffer(raw, f"<i{width}") / 2.0 ** (8 * width - 1)
    return values[: len(values) // channels * channels].reshape(-1, channels).mean(axis=1)


def named(hz: float) -> dict:
    """Return the nearest note of the equal-tempered scale."""
    number = round(69 + 12 * np.log2(hz / 440))
    return {"note": f"{NAMES[number % 12]}{number // 12 - 1}", "hz": round(hz, 1)}
