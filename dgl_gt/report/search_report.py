"""The report of a search."""


def write_search_report(directory, out, *, force=False):
    return {}
