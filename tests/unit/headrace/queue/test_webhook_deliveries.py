"""How a job last ended, as its webhooks read it from `hr:hook:<id>`."""

from __future__ import annotations

from headrace.queue.webhook_deliveries import read_log


def test_the_end_of_each_api_key_is_its_own() -> None:
    log = read_log({b"s": b"f", b"en": b"20", b"e:aa": b"s10", b"e:bb": b"f20"})
    assert log.end_of("aa") == ("s", 10)
    assert log.end_of("bb") == ("f", 20)
    assert log.end_of("cc") is None


def test_an_end_that_an_older_version_noted_counts_if_it_is_the_last() -> None:
    assert read_log({b"s": b"s", b"en": b"10"}).end_of("aa") == ("s", 10)
    # A dead letter was requeued, and an older worker has run it.
    requeued = read_log({b"s": b"s", b"en": b"20", b"e:aa": b"f10"})
    assert requeued.end_of("aa") == ("s", 20)
    assert read_log({b"s": b"s", b"en": b"10", b"e:aa": b"f20"}).end_of("aa") == ("f", 20)


def test_what_cannot_be_read_is_left_out() -> None:
    assert read_log({b"s": b"", b"en": b"x", b"e:aa": b"s"}).end_of("aa") is None
