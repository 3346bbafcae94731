"""From where somebody asks, with and without a proxy that was stated."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from halfmoon.console.visitors import address_of, cookie_name
from tests.console.conftest import Site


def request(*forwarded: str, host: str = "") -> Request:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded] + [(b"host", host.encode())]
    return Request({"type": "http", "headers": headers, "client": ("10.0.0.9", 4000)})


async def test_what_a_browser_says_of_its_address_is_not_believed(site: Site):
    assert address_of(site.services, request("1.2.3.4")) == "10.0.0.9"


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        (["6.6.6.6, 1.2.3.4"], "1.2.3.4"), ([], "10.0.0.9"), ([""], "10.0.0.9"), (["6.6.6.6", "1.2.3.4"], "1.2.3.4"),
        (["1.2.3.4:50123"], "1.2.3.4"), (["[2001:db8::1]:50123"], "2001:db8::1"), (["2001:db8::1"], "2001:db8::1"),
    ],
)  # fmt: skip
async def test_behind_a_proxy_the_address_that_it_added_counts(site: Site, forwarded: list[str], address: str):
    assert address_of(site.services._replace(public_url="https://console.test"), request(*forwarded)) == address


async def test_a_cookie_of_tls_is_kept_from_other_hosts_by_its_name(site: Site):
    assert cookie_name(site.services, request()) == "halfmoon"
    assert cookie_name(site.services._replace(secure=True), request()) == "__Host-halfmoon"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "halfmoon"), ("localhost:8480", "halfmoon-8480"), ("localhost:8481", "halfmoon-8481"),
        ("[2001:db8::8480]", "halfmoon"), ("[::1]:8480", "halfmoon-8480"), ("x:80;b=c", "halfmoon"),
        ("x:" + "1" * 10_000, "halfmoon-11111"),
    ],
)  # fmt: skip
async def test_consoles_of_one_host_have_cookies_of_their_own(site: Site, host: str, name: str):
    assert cookie_name(site.services, request(host=host)) == name
    behind = [site.services._replace(public_url=url) for url in ("https://console.test", "https://[2001:db8::1]:8443")]
    assert [cookie_name(services, request(host=host)) for services in behind] == ["halfmoon", "halfmoon-8443"]
