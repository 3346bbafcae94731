"""Each fault that is looked for is found where it is planted, and none on a page that has none."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route

from tests.console.browser.accessibility import faults
from tests.console.browser.chromium import DESKTOP

GOOD = """\
<!doctype html>
<html lang="en">
<head>
<title>Topics</title>
<style>
:root { color-scheme: light dark; }
body { margin: 8px; }
::placeholder { color: inherit; }
p { color: light-dark(rgb(0 0 0 / 70%), oklch(0.8 0.1 200)); }
.scroll { overflow-x: auto; }
.unseen { position: absolute; left: -999px; }
.scroll td { min-width: 400px; }
</style>
</head>
<body>
<a class="unseen" href="#main">Skip to content</a>
<nav><details><summary>Menu</summary><a href="/">Overview</a></details></nav>
<main id="main" tabindex="-1">
<h1>Topics</h1>
<p>Of one broker.</p>
<h2>Search</h2>
<form>
<label>Name <input name="name" placeholder="orders"></label>
<label for="order">Order</label> <select id="order"><option>name</option></select>
<input type="hidden" name="token"> <input type="checkbox" aria-label="with retries">
<label><input type="radio" name="kind" value="a"> all</label> <label><input type="radio" name="kind" value="b"> some</label>
<textarea aria-labelledby="order-title"></textarea> <b id="order-title">Notes</b>
<button>Search</button> <button disabled style="color: gray; background: silver">Delete</button>
</form>
<h2>Found</h2>
<div class="scroll"><table>
<tr><th scope="col">Topic</th><th scope="col">Queues</th></tr>
<tr><th scope="row"><a href="/topic">orders</a></th><td>8</td></tr>
</table></div>
<img src="data:," alt=""> <svg aria-hidden="true"></svg> <svg role="img" aria-label="Rates" width="20" height="20"></svg>
<h2>Notes</h2><h3>Small</h3><button><img src="data:," alt="Close"></button>
<footer>The end.</footer>
</main>
</body>
</html>
"""
LIGHT, DARK, UNSEEN = 'light: "The end." has a', 'dark: "The end." has a', "cannot be seen"
PLANTED = [
    (' lang="en"', "", ["the page has no language"]),
    ("<title>Topics</title>", "<title> </title>", ["the page has no title"]),
    ("<h1>Topics</h1>", "<p>Topics</p>", ["the page has 0 <h1>", '<h2> "Search" skips a level']),
    ("<h2>Found</h2>", "<h1>Found</h1>", ["the page has 2 <h1>"]),
    ("<h3>Small</h3>", "<h4>Small</h4>", ['<h4> "Small" skips a level']),
    ("<label>Name ", "<label>", ['<input> "name" has no label']),
    (' for="order"', "", ['<select> "order" has no label']),
    ('aria-label="with retries"', 'title="with retries"', ["<input> has no label"]),
    ('aria-labelledby="order-title"', 'aria-labelledby="nowhere"', ["<textarea> has no label"]),
    ("<button>Search</button>", '<button id="go"><svg aria-hidden="true"></svg></button>', ['<button> "go" has no name']),
    ('alt="Close"', 'alt=""', ["<button> has no name"]),
    ('<a href="/topic">orders</a>', '<a href="/topic"> </a>', ['<a> "/topic" has no name']),
    ('<img src="data:," alt="">', '<img src="data:,">', ["<img> data:, has no alt"]),
    ('<svg aria-hidden="true">', "<svg>", ["<svg> has no name and is not hidden"]),
    ('<th scope="col">Queues', "<th>Queues", ['<th> "Queues" has no scope']),
    ('<th scope="row"><a', '<th scope="line"><a', ['<th> "orders" has no scope']),
    ("<footer>The end.", "<table><tr><td>8</td></tr></table>", ['<table> "8" has no headers']),
    ("70%", "40%", ['light: "Of one broker." has a contrast of 2.85']),
    ("oklch(0.8", "oklch(0.3", ['dark: "Of one broker." has a contrast of 1.52']),
    ("<footer>", '<footer style="opacity: 0.4">', [f'{LIGHT} contrast of 2.85', f'{DARK} contrast of 3.83']),
    ("<footer>", '<footer style="background: #777; color: #fff">', [f'{LIGHT} contrast of 4.48', f'{DARK} contrast of 4.48']),
    ("p {", "::placeholder { color: light-dark(#aaa, #aaa); } p {", ['light: "orders" has a contrast of 2.32']),
    ("overflow-x: auto", "overflow-x: visible", ['<th> "Queues" reaches beyond 360 px', '<td> "8" reaches beyond 360 px']),
    ("<footer>The end.", '<footer style="width: 500px">The end.', ['<footer> "The end." reaches beyond 360 px']),
    ("<button>Search", '<button tabindex="1">Search', ['Tab reaches <a> "orders" before <button> "Search"']),
    ("<button>Search", '<button onfocus="blur()">Search', ['<button> "Search" cannot be reached with Tab']),
    ("p {", "button:focus { outline: none; } p {", [f'the focus on <button> "Search" {UNSEEN}', f"the focus on <button> {UNSEEN}"]),
    ("p {", "summary:focus { outline-color: transparent; } p {", [f'the focus on <summary> "Menu" {UNSEEN}']),
]  # fmt: skip


def test_a_page_without_faults_has_none_and_is_left_as_it_was(page: Page) -> None:
    page.set_content(GOOD)
    before = page.content()

    assert faults(page) == []

    assert page.viewport_size == DESKTOP
    assert page.evaluate("matchMedia('(prefers-color-scheme: light)').matches")
    assert page.content() == before


@pytest.mark.parametrize(("good", "bad", "found"), PLANTED, ids=[" ".join(found) for _, _, found in PLANTED])
def test_a_planted_fault_is_found_and_no_other(page: Page, good: str, bad: str, found: list[str]) -> None:
    assert GOOD.count(good) == 1
    page.set_content(GOOD.replace(good, bad))
    assert faults(page) == found


def test_a_page_that_allows_no_script_of_others_is_asked_all_the_same(page: Page) -> None:
    def answer(route: Route) -> None:
        route.fulfill(body="<h1>Bare</h1>", headers={"Content-Security-Policy": "default-src 'none'", "Content-Type": "text/html"})

    page.route("**/bare", answer)
    page.goto("http://127.0.0.1/bare")
    assert faults(page) == ["the page has no language", "the page has no title"]
