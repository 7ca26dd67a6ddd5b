"""Walks the built site in Chromium and lists what a reader would trip over.

`make docs-browse`. It serves site/ to this machine alone and follows the links
from the front page. It looks at every page on a phone and on a desktop, in
light and in dark, and searches for a few words. Pictures go to runs/site/.
"""

import argparse
import contextlib
import dataclasses
import functools
import http.server
import pathlib
import re
import shutil
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Page
from playwright.sync_api import Request
from playwright.sync_api import TimeoutError
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
# What the site calls the schemes that a reader prefers.
SCHEMES = {"light": "default", "dark": "slate"}
TALLEST = 3000  # pixels of a page in its picture
SWITCHES = (
    "--no-sandbox",  # Chromium refuses to run as root otherwise.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# What a reader searches for, and a page among the first results.
SEARCHES = {
    "learning rate": "guides/learning_rate/",
    "stochastic rounding": "guides/memory/",
    "LayoutMap": "guides/distributed/",
    "NoiseMonitor": "api/callbacks/",
    "convolution": "guides/cnn/",
    "KerasTuner": "guides/learning_rate/",
}
FIRST = 3

READ = """() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const links = (selector) => all(selector).map((one) => one.href);
  return {
    title: document.title,
    ids: all("[id]").map((one) => one.id),
    links: links("a[href]"),
    text: links("article a[href]:not(.headerlink)"),
  };
}"""
MISSING = """() => [...document.images]
  .filter((one) => !one.complete || !one.naturalWidth).map((one) => one.src)"""
# Beyond the right edge, and in no box that scrolls.
WIDE = """() => {
  const edge = document.documentElement.clientWidth + 1;
  const boxed = (one) => one && one !== document.body && (
    /auto|scroll/.test(getComputedStyle(one).overflowX)
    || boxed(one.parentElement));
  return [...document.querySelectorAll("article *, .md-footer *")]
    .filter((one) => one.getBoundingClientRect().right > edge && !boxed(one))
    .map((one) => one.outerHTML.slice(0, 80));
}"""


@dataclasses.dataclass
class Site:
    """What a walk finds.

    Args:
        folder: The built site.
        base: The address that it is served at.
        pages: What each page holds, by address: the result of `READ`.
        problems: What is wrong.
    """

    folder: pathlib.Path
    base: str
    pages: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)

    def name(self, address: str) -> str:
        """The path of an address; the front page has none."""
        return address.removeprefix(self.base) or "front page"

    def add(self, address: str, problem: str) -> None:
        """Notes a problem of a page once."""
        line = f"{self.name(address)}: {problem}"
        if line not in self.problems:
            self.problems.append(line)

    def links(self, address: str, kind: str = "links") -> list[str]:
        """The links of a page that stay in the site."""
        found = self.pages[address][kind]
        return [link for link in found if link.startswith(self.base)]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Prints nothing."""


@contextlib.contextmanager
def served(folder: pathlib.Path) -> Iterator[str]:
    """The address at which a folder is served."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextlib.contextmanager
def browsed(chromium: str) -> Iterator[Page]:
    """A page of a new Chromium, whose profile is empty and removed after."""
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            profile, executable_path=chromium, headless=True, args=[*SWITCHES]
        )
        # Every page is the first: the site remembers the scheme of a visit.
        context.add_init_script("localStorage.clear()")
        yield context.pages[0]
        context.close()


def listen(page: Page, site: Site) -> None:
    """Notes what the browser complains of, on whichever page it is."""

    def add(problem: str) -> None:
        site.add(page.url.partition("#")[0], problem)

    def failed(request: Request) -> None:
        # The walk leaves pages before they have all that they asked for.
        if request.failure != "net::ERR_ABORTED":
            add(f"{request.url} did not load")

    page.on("pageerror", lambda error: add(f"error {error}"))
    page.on("requestfailed", failed)
    page.on(
        "console",
        lambda one: one.type == "error" and add(f"console: {one.text}"),
    )
    page.on(
        "request",
        lambda one: (
            one.url.startswith((site.base, "data:", "blob:"))
            or add(f"asks another server: {one.url}")
        ),
    )


def walk(page: Page, site: Site) -> None:
    """Reads every page that links lead to from the front page."""
    pending = [site.base]
    while pending:
        address = pending.pop(0)
        if address in site.pages:
            continue
        answer = page.goto(address)
        if not answer or not answer.ok:
            continue  # `check_links` says who leads there.
        site.pages[address] = page.evaluate(READ)
        targets = {link.partition("#")[0] for link in site.links(address)}
        pending += sorted(one for one in targets if one.endswith("/"))


def check_links(site: Site) -> None:
    """Notes links to files and anchors that do not exist."""
    for address in site.pages:
        for link in site.links(address):
            target, _, anchor = link.partition("#")
            path = urllib.parse.unquote(target.removeprefix(site.base))
            if not (site.folder / path).exists():
                site.add(address, f"no file {path}")
            elif anchor and target in site.pages:
                ids = site.pages[target]["ids"]
                if urllib.parse.unquote(anchor) not in ids:
                    site.add(address, f"no anchor {path}#{anchor}")


def look(page: Page, site: Site, pictures: pathlib.Path) -> None:
    """Looks at every page in each size and scheme, and takes its picture."""
    for device, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            for address in site.pages:
                page.goto(address)
                for problem in see(page, f"on a {device} in {scheme}"):
                    site.add(address, problem)
                stem = site.name(address).strip("/").replace("/", "-")
                name = f"{stem}-{device}-{scheme}.png".replace(" ", "-")
                take(page, pictures / name)


def see(page: Page, where: str) -> Iterator[str]:
    """What is wrong with a page as it is shown.

    Args:
        page: The page.
        where: The device and the scheme, in words.
    """
    scheme = page.evaluate("document.body.dataset.mdColorScheme")
    if scheme != SCHEMES[where.split()[-1]]:
        yield f"{where}: its scheme is {scheme}"
    yield from (f"no picture {image}" for image in page.evaluate(MISSING))
    for element in page.evaluate(WIDE):
        yield f"{where}: too wide: {element}"


def take(page: Page, path: pathlib.Path) -> None:
    """Takes a picture of a page, as far down as `TALLEST`."""
    height = page.evaluate("document.documentElement.scrollHeight")
    size = page.viewport_size or {}
    clip = {"x": 0, "y": 0, **size, "height": min(height, TALLEST)}
    page.screenshot(path=path, full_page=True, clip=clip)


def search(page: Page, site: Site) -> None:
    """Notes words whose page is not among the first results."""
    for words, wanted in SEARCHES.items():
        # The site answers to keys, once its index is here.
        page.goto(site.base, wait_until="networkidle")
        field = page.locator("input.md-search__input")
        field.click()
        field.press_sequentially(words)
        results = page.locator("a.md-search-result__link")
        try:
            results.first.wait_for()
        except TimeoutError:
            site.add(site.base, f'a search for "{words}" finds nothing')
        links = results.evaluate_all("all => all.map((one) => one.href)")
        paths = [re.split("[?#]", site.name(link))[0] for link in links]
        first = list(dict.fromkeys(paths))[:FIRST]
        if wanted not in first:
            site.add(site.base, f'a search for "{words}" has {first} first')


def clicks(site: Site, kind: str) -> dict[str, int]:
    """How many links of a kind lead from the front page to each page."""
    found, pending = {site.base: 0}, [site.base]
    while pending:
        address = pending.pop(0)
        for link in site.links(address, kind):
            target = link.partition("#")[0]
            if target in site.pages and target not in found:
                found[target] = found[address] + 1
                pending.append(target)
    return found


def report(site: Site) -> None:
    """Prints the distances of the pages and the links to elsewhere."""
    near, read = clicks(site, "links"), clicks(site, "text")
    print("clicks from the front page: by any link, by links in the text")
    for address in sorted(site.pages, key=lambda one: (near[one], one)):
        far = read.get(address, "never")
        print(f"{near[address]:>3} {far:>6}  {site.name(address)}")
    elsewhere = {
        link
        for page in site.pages.values()
        for link in page["links"]
        if not link.startswith(site.base)
    }
    print("not visited:", *sorted(elsewhere), sep="\n  ")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/browse_docs.py", description=__doc__
    )
    parser.add_argument("--site", type=pathlib.Path, default=ROOT / "site")
    parser.add_argument(
        "--pictures", type=pathlib.Path, default=ROOT / "runs" / "site"
    )
    parser.add_argument("--chromium", default="chromium", metavar="COMMAND")
    args = parser.parse_args()
    chromium = shutil.which(args.chromium)
    if not chromium:
        sys.exit(
            f"No {args.chromium} here: `apt-get install chromium`, or `make "
            "docs-browse CHROMIUM=...`."
        )
    args.pictures.mkdir(parents=True, exist_ok=True)
    with served(args.site) as base, browsed(chromium) as page:
        site = Site(args.site, base)
        listen(page, site)
        walk(page, site)
        check_links(site)
        look(page, site, args.pictures)
        search(page, site)
    report(site)
    if site.problems:
        sys.exit("\n".join(["wrong:", *site.problems]))
    print(f"{len(site.pages)} pages are well; pictures in {args.pictures}")


if __name__ == "__main__":
    main()
