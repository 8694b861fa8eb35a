"""A handler whose `handle` is a coroutine function."""

import asyncio


class AsyncHandle:
    def initialize(self, context):
        self.initialized = True

    async def handle(self, data, context):
        await asyncio.sleep(0)
        return [{"body": bytes(row["body"]).decode()} for row in data]
