"""The rest of the URL behind the version."""


def handle(data, context):
    if data is None:
        return None
    return [{"url_path": context.get_request_header(idx, "url_path")} for idx, _ in enumerate(data)]
