"""Where webhooks may go, how they are signed, and what their settings refuse."""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec
import pytest
from standardwebhooks import Webhook

from headrace.config.settings import load_settings
from headrace.errors import ConfigError, InvalidRequest
from headrace.jobs.message import decode_message
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions
from headrace.queue.submission import hash_request
from headrace.webhooks.allowed_addresses import may_reach, read_address, read_networks
from headrace.webhooks.endpoint import WebhookPolicy, read_target, shown
from headrace.webhooks.signing import new_secret, read_secret, secrets_of, signature, written
from headrace.webhooks.task_message import WebhookTask, message, webhook_fields

PUBLIC = ("1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700:4700::1111", "::ffff:1.1.1.1")
PRIVATE = (
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.1.1",
    "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.51.100.9", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::7f00:1",
    "64:ff9b::808:808", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:10::1",
    "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1",
    "fc00::1", "fd12::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "4000::1",
)  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_reached(text: str) -> None:
    assert may_reach(read_address(text), ())


@pytest.mark.parametrize("text", PRIVATE)
def test_no_other_is_unless_it_is_allowed(text: str) -> None:
    address = read_address(text)
    assert not may_reach(address, read_networks(["192.0.3.0/24", "2a00::/16"]))
    if text != "64:ff9b::a00:1":
        assert may_reach(address, (ipaddress.ip_network(address),))


@pytest.mark.parametrize(
    "text",
    [
        "169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16",
        "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42",
        "fd00:a9fe:a9fe::1", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "fe80::a9fe:a9fe%eth0",
    ],
)  # fmt: skip
def test_no_setting_allows_the_addresses_at_which_clouds_serve_credentials(text: str) -> None:
    everything = read_networks(["0.0.0.0/0", "::/0"])
    assert may_reach(read_address("169.254.1.1"), everything)
    assert not may_reach(read_address(text), everything)


def test_who_allows_a_translator_has_not_allowed_what_is_behind_it() -> None:
    allowed = read_networks(["64:ff9b::/96"])
    assert may_reach(read_address("64:ff9b::808:808"), allowed)
    assert not may_reach(read_address("64:ff9b::a00:1"), allowed)
    assert may_reach(read_address("64:ff9b::a00:1"), [*allowed, *read_networks(["10.0.0.0/8"])])
    with pytest.raises(ValueError, match=r"'10\.0\.0\.1/8' is not a network"):
        read_networks(["10.0.0.1/8"])


BAD = {
    "": "invalid characters",
    "example.com/hook": "the URL has no scheme",
    "http://example.com/": "the scheme http is not allowed",
    "file:///etc/passwd": "the scheme file is not allowed",
    "https://": "no host",
    "https:///x": "no host",
    "https://a:b@example.com/": "a user or a password",
    "https://example.com@10.0.0.1/": "a user or a password",
    "https://example.com/#x": "fragment",
    "https://example.com:0/": "port 0",
    "https://example.com:99999/": "cannot be read",
    "https://exa mple.com/": "characters",
    "https://example.com\\@10.0.0.1/": "characters",
    "https://example.com/\r\nhost: x": "characters",
    "https://müller.example/": "characters",
    "https://127.1/": "is not a host",
    "https://2130706433/": "is not a host",
    "https://0x7f000001/": "is not a host",
    "https://0x7f.1/": "is not a host",
    "https://1.2.3.4.5/": "is not a host",
    "https://[::1/": "cannot be read",
    "https://[fe80::1%25eth0]/": "is not a host",
    "https://a..b/": "is not a host",
    "https://" + "a" * 2048: "more than 2048",
}


@pytest.mark.parametrize("url", BAD)
def test_what_is_no_url_of_a_webhook(url: str) -> None:
    with pytest.raises(InvalidRequest, match=BAD[url]) as caught:
        read_target(url)
    assert caught.value.message.startswith("webhook: ")


def test_a_url_taken_apart() -> None:
    target = read_target("https://Example.com:8443/a/b?c=d%20e")
    assert (target.host, target.port, target.path) == ("example.com", 8443, "/a/b?c=d%20e")
    assert (target.authority, target.literal) == ("Example.com:8443", None)
    assert read_target("https://x.y").port == 443
    assert read_target("http://x.y", allow_http=True).port == 80
    assert read_target("https://[::ffff:7f00:1]/").literal == ipaddress.ip_address("127.0.0.1")
    assert read_target("https://LOCALHOST./").literal == ipaddress.ip_address("127.0.0.1")
    assert shown("https://a/b?token=1") == "https://a/b?…"
    assert shown("https://a/b") == "https://a/b"


def test_what_a_submit_may_ask_for() -> None:
    wanted = JobOptions(webhook="https://example.com/")
    policy = WebhookPolicy(on=True)
    policy.check(DEFAULT_OPTIONS)
    policy.check(wanted)
    for options, sentence in (
        (JobOptions(webhook="https://192.168.1.7/"), "private or reserved network"),
        (JobOptions(webhook="https://localhost/"), "private or reserved network"),
        (JobOptions(webhook_events=("failed",)), "webhook_events needs webhook"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            policy.check(options)
    with pytest.raises(InvalidRequest, match="sends no webhooks") as caught:
        WebhookPolicy(on=False).check(wanted)
    assert "webhook_secrets" in caught.value.message
    home = WebhookPolicy(on=True, networks=("192.168.0.0/16",))
    home.check(JobOptions(webhook="https://192.168.1.7/"))


def test_a_signature_is_as_the_reference_library_has_it() -> None:
    secret, body = new_secret(), '{"data":"wäre"}'.encode()
    from datetime import UTC, datetime

    at = datetime(2026, 11, 21, 10, 15, tzinfo=UTC)
    theirs = Webhook(secret).sign("msg_1", at, body.decode())
    both = signature(secrets_of([secret, new_secret()]), "msg_1", int(at.timestamp()), body)
    assert both.split(" ")[0] == theirs
    assert len(both.split(" ")) == 2
    assert written(read_secret(secret)) == secret
    mine, other = secrets_of([secret], "a" * 12), secrets_of([secret], "b" * 12)
    assert len({*mine, *other, *secrets_of([secret])}) == 3


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%", "c" * 44])
def test_a_bad_setting_is_named_and_a_secret_never_shown(text: str) -> None:
    good = new_secret()
    with pytest.raises(ConfigError) as caught:
        load_settings(
            None, {"HEADRACE_WEBHOOK_ALLOW_NETWORKS": "10.0.0.0/8,x"},
            {"webhook_secrets": [good, text]},
        )  # fmt: skip
    assert "webhook_secrets: number 2: expected whsec_ and 24 to 64 bytes" in caught.value.message
    assert "webhook_allow_networks: 'x' is not a network" in caught.value.message
    assert good not in str(caught.value)
    assert len(text) < 20 or text not in str(caught.value)
    settings = load_settings(None, {"HEADRACE_WEBHOOK_SECRETS": f"{good},{good}"}, {})
    assert settings.webhook_secrets == (good, good)
    assert good not in repr(settings)


def test_a_webhook_makes_another_request() -> None:
    plain, wanted = JobOptions(priority=3), JobOptions(priority=3, webhook="https://x.y/")
    assert hash_request("m", b"1", plain) != hash_request("m", b"1", wanted)


def fields(options: JobOptions) -> dict[Any, Any]:
    flat = webhook_fields("id", "m", "k", options)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_what_a_record_carries() -> None:
    url = "https://x.y/?token=secret"
    assert fields(DEFAULT_OPTIONS) == {}
    usual = fields(JobOptions(webhook=url))
    assert set(usual) == {"wh", "we"}
    assert sorted(usual["we"]) == sorted("sfcx")
    some = fields(JobOptions(webhook=url, webhook_events=("started", "failed")))
    assert (set(some), some["we"]) == ({"wh", "we", "ws"}, "f")
    assert set(fields(JobOptions(webhook=url, webhook_events=("started",)))) == {"ws"}
    raw = msgspec.json.decode(some["wh"])
    assert "token" not in json_of(raw["headers"]), "Flower shows it"
    assert raw["headers"]["task"] == "headrace.webhook"
    with pytest.raises(InvalidRequest):
        decode_message(message(WebhookTask("id")))


def json_of(value: Any) -> str:
    return msgspec.json.encode(value).decode()
