"""How a job last ended, as its webhooks read it from `hr:hook:<id>`."""

from __future__ import annotations

from headrace.queue.webhook_deliveries import read_log


def test_the_end_of_each_api_key_is_its_own() -> None:
    log = read_log({b"e:aa": b"s10", b"e:bb": b"f20"})
    assert log.ends.get("aa") == ("s", 10)
    assert log.ends.get("bb") == ("f", 20)
    assert log.ends.get("cc") is None


def test_what_cannot_be_read_is_left_out() -> None:
    assert read_log({b"e:aa": b"s", b"e:bb": b"sx"}).ends.get("aa") is None
