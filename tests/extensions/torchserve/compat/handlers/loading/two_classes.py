"""A module with two classes and no function: the entry point is not clear."""


class First:
    def handle(self, data, context):
        return ["first"] * len(data)


class Second:
    def handle(self, data, context):
        return ["second"] * len(data)
