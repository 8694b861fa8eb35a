"""A session for each sequence, in a continuous batch: it adds up the numbers of its requests.

An even number is answered by the sum. An odd one streams the sum until the session stops it. -1
stops all streams of the session, and 0 ends the session.
"""

import time
from collections import OrderedDict


class Session:
    def initialize(self, context):
        self.context = context
        self.capacity = context.model_yaml_config["handler"]["cache"]["capacity"]
        #: The newest sums, by sequence.
        self.sums = OrderedDict()
        context.cache = {}

    def handle(self, data, context):
        outputs = self.postprocess(self.inference(self.preprocess(data)))
        if any(one["streams"] for one in context.cache.values()):
            time.sleep(0.02)
        return outputs

    def preprocess(self, data):
        return [self._taken(idx, row) for idx, row in enumerate(data)]

    def inference(self, names):
        return [self.context.cache[name]["sum"] for name in names]

    def postprocess(self, sums):
        names = self.context.request_ids.values()
        self.context.stopping_criteria = [criterion(self.context.cache, name) for name in names]
        return sums

    def _taken(self, idx, row):
        """Take a request in its first call; return its id."""
        context, name = self.context, self.context.get_request_id(idx)
        sequence = context.get_sequence_id(idx)
        # A router in front of the server finds the session by it.
        context.set_response_header(idx, context.header_key_sequence_id, sequence)
        if name not in context.cache:
            number = int(bytes(row["body"]).decode())
            if context.get_request_header(idx, context.header_key_sequence_start):
                self.sums.pop(sequence, None)
            if number == -1:
                self._stop(sequence)
            else:
                self._add(sequence, number)
            if number == 0:
                context.set_response_header(idx, context.header_key_sequence_end, sequence)
            context.cache[name] = {
                "sequence": sequence,
                "sum": -1 if number == -1 else self.sums[sequence],
                "streams": number > 0 and number % 2 == 1,
                "stopped": False,
            }
        return name

    def _add(self, sequence, number):
        self.sums[sequence] = self.sums.get(sequence, 0) + number
        self.sums.move_to_end(sequence)
        while len(self.sums) > self.capacity:
            self.sums.popitem(last=False)

    def _stop(self, sequence):
        for one in self.context.cache.values():
            one["stopped"] = one["stopped"] or one["sequence"] == sequence


def criterion(cache, name):
    """Return what ends a request: None for a single answer, True for the last piece of a stream."""

    def ends(value):
        one = cache[name]
        if one["streams"] and not one["stopped"]:
            return False
        del cache[name]
        return True if one["streams"] else None

    return ends
