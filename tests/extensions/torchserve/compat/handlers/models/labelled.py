"""A handler derived from BaseHandler that uses `index_to_name.json`."""

import torch

from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import map_class_to_label


class Labelled(BaseHandler):
    def preprocess(self, data):
        return torch.as_tensor([row["body"]["x"] for row in data], dtype=torch.float32)

    def postprocess(self, data):
        probabilities, classes = torch.topk(data, 2, dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
