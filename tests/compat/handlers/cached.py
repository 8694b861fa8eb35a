"""A handler that keeps things in an attribute of the context that it makes itself."""


class Cached:
    def initialize(self, ctx):
        self.context = ctx
        ctx.cache = {"calls": 0}

    def handle(self, data, context):
        self.context.cache["calls"] += 1
        assert context.cache is self.context.cache
        return [{"cached": context.cache["calls"] > 0} for _ in data]
