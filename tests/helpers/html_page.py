"""What is on a page: for tests of the reports on shards and on runs."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The text of a page, its tags, and the cells of its tables. Tags that are not closed in order are an error."""

    def __init__(self, source: str):
        super().__init__()
        self.source, self.text, self.tables, self.tags, self._open = source, "", [], [], []
        self.feed(self.source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag != "meta":
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data

    def words(self):
        return " ".join(self.text.split())
