"""All header names of a request in order, the rest of its URL behind the version, and its id."""


class AllHeaders:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        assert list(context.request_ids) == list(range(len(data)))
        return [
            {
                "names": sorted(name.lower() for name in context.get_all_request_header(idx)),
                "url_path": context.get_request_header(idx, "url_path"),
                "id length": len(request_id),
                "same id": context.get_request_id(idx) == request_id,
            }
            for (idx, request_id), _ in zip(context.request_ids.items(), data, strict=True)
        ]
