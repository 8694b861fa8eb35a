"""A handler that writes metrics of its own, in each way of the API."""

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.base_handler import BaseHandler


class CustomMetrics(BaseHandler):
    def initialize(self, context):
        self.context = context
        self.initialized = True
        metrics = context.metrics
        self.failed = metrics.add_metric_to_cache(
            metric_name="InferenceRequestCount",
            unit="count",
            dimension_names=["MethodName"],
            metric_type=MetricTypes.COUNTER,
        )

    def preprocess(self, data):
        self.failed.add_or_update(value=1, dimension_values=["preprocess"])
        return data

    def inference(self, data, *args, **kwargs):
        metrics = self.context.metrics
        metrics.add_counter("Rows", len(data), 0, [Dimension("Kind", "row")])
        metrics.add_time("Stage", 12.5, 0, "ms", [Dimension("Kind", "time")])
        metrics.add_size("Image", 1.5, 0, "MB", [Dimension("Kind", "size")])
        metrics.add_percent("Filled", 50.0, 0, [Dimension("Kind", "percent")])
        metrics.add_metric("Score", 0.25, "unit", 0, [Dimension("Kind", "any")], MetricTypes.GAUGE)
        metrics.get_metric("HandlerTime", MetricTypes.GAUGE)
        return data

    def postprocess(self, data):
        return ["OK"] * len(data)
