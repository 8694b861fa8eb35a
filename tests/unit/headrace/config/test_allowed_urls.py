from __future__ import annotations

import pytest

from headrace.config.allowed_urls import is_allowed, read_prefix, read_url

PREFIXES = [read_prefix("https://models.example.com/v2"), read_prefix("http://10.0.0.1:9000")]


@pytest.mark.parametrize(
    "url",
    [
        "https://models.example.com/v2",
        "https://models.example.com/v2/a.zip",
        "https://MODELS.example.com:443/v2/a.zip?signature=x/../y",
        "http://10.0.0.1:9000/a/b.mar",
    ],
)
def test_what_begins_with_an_allowed_url_is_allowed(url: str) -> None:
    assert is_allowed(read_url(url), PREFIXES)


@pytest.mark.parametrize(
    "url",
    [
        "https://models.example.com/v20/a.zip",
        "https://models.example.com/a.zip",
        "https://models.example.com.evil.net/v2/a.zip",
        "https://models.example.com:8443/v2/a.zip",
        "http://models.example.com/v2/a.zip",
        "http://10.0.0.10:9000/a.zip",
    ],
)
def test_another_host_port_scheme_or_path_is_not(url: str) -> None:
    assert not is_allowed(read_url(url), PREFIXES)


@pytest.mark.parametrize(
    "url",
    [
        "https://models.example.com@evil.net/v2/a.zip",
        "https://user:secret@models.example.com/v2/a.zip",
        "https://models.example.com/v2/../secret/a.zip",
        "https://models.example.com/v2/%2e%2E/secret/a.zip",
        "https://models.example.com/v2/..%2fsecret/a.zip",
        "https://models.example.com/v2/%252e%252e/a.zip",
        "https://models.example.com\\@evil.net/v2/a.zip",
        "https://models.example.com/v2/a.zip#part",
        "https://models.example.com/v2/a b.zip",
        "https://models.example.com/v2/a\n.zip",
        "https://models.example.com:port/v2/a.zip",
        "https://mod\u00e9ls.example.com/v2/a.zip",
        "https:///v2/a.zip",
        "ftp://models.example.com/v2/a.zip",
        "v2/a.zip",
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_url(url)


def test_messages_have_no_query_and_no_password() -> None:
    for url in ("https://a.example/x y?signature=secret", "https://u:secret@a.example/x"):
        with pytest.raises(ValueError, match=r"URL|character") as caught:
            read_url(url)
        assert "secret" not in str(caught.value)
