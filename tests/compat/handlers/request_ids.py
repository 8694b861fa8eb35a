"""The ids of the batch's requests: zipped with the data, and asked for one by one."""


class RequestIds:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        assert list(context.request_ids) == list(range(len(data)))
        return [
            {"length": len(request_id), "same": context.get_request_id(idx) == request_id}
            for (idx, request_id), _ in zip(context.request_ids.items(), data, strict=True)
        ]
