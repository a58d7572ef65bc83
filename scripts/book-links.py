#!/usr/bin/env python3
"""Checks that each link, picture and anchor of a built book has a target: book-links.py FOLDER

Links to other hosts are not followed. Exit status: 0 all have a target, 1 one has none, 2 wrong usage."""
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append((self.getpos()[0], value))


def main():
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "index.html").is_file():
        print("usage: book-links.py FOLDER; FOLDER is the output of mdbook, with index.html", file=sys.stderr)
        sys.exit(2)
    book = Path(sys.argv[1]).resolve()
    pages = {path: Page(path) for path in sorted(book.rglob("*.html"))}
    wrong, count = [], 0
    for path, page in pages.items():
        # The error page is served at any address; the print page repeats the links of all pages.
        if path.name in ("404.html", "print.html"):
            continue
        for line, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            where = "%s:%d: %s" % (path.relative_to(book), line, link)
            if book not in target.parents:
                wrong.append(where + ": the target is outside the book")
            elif not target.is_file():
                wrong.append(where + ": no such file")
            elif parts.fragment and target.suffix == ".html":
                if unquote(parts.fragment) not in pages[target].anchors:
                    wrong.append(where + ": no such heading")
    if wrong:
        sys.exit("broken links:\n" + "\n".join(sorted(set(wrong))))
    if len(pages) < 15 or count < 200:
        sys.exit("book: %d pages with %d links; the book has at least 15 and 200" % (len(pages), count))
    print("book: %d pages, %d links, none broken" % (len(pages), count))


if __name__ == "__main__":
    main()
