#!/usr/bin/env python3
"""Strips an HTML page to the text that `pagoda eval ppl` reads: make_texts.py PAGE.html > TEXT.

The rules are fixed for good: another rule gives other tokens, and figures could not be compared.
"""

import html
import re
import sys


def strip(page):
    page = re.sub(r"(?s)<head.*?</head>|<script.*?</script>", "", page)
    page = re.sub(r"<(p|br|h\d|li)[^>]*>", "\n", page)
    page = html.unescape(re.sub(r"<[^>]+>", "", page))
    page = re.sub(r"[ \t]*\n[ \t]*", "\n", page)
    return re.sub(r"\n{3,}", "\n\n", page).strip()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8", errors="replace") as page:
        sys.stdout.buffer.write(strip(page.read()).encode("utf-8"))


if __name__ == "__main__":
    main()
