"""A server of S3 on the loopback that fails, refuses or counts requests as a test asks."""

import logging
import threading
from collections import Counter
from contextlib import contextmanager

_ANSWER = "<?xml version='1.0'?><Error><Code>{}</Code><Message>{}</Message></Error>"


class Store:
    """The server's application: moto, behind faults.

    ``fail_every`` fails each n-th request; ``is_forbidden(method, path)`` says what is answered with 403.
    """

    def __init__(self, application):
        self._application, self._lock = application, threading.Lock()
        self.requests: Counter = Counter()  # by method and path
        self.failed, self.fail_every = 0, 0
        self.is_forbidden = lambda method, path: False

    def __call__(self, environ, start_response):
        asked = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            self.requests[asked] += 1
            fails = self.fail_every and self.requests.total() % self.fail_every == 0
            self.failed += bool(fails)
        if fails:
            return self._refused(environ, start_response, "503 Slow Down", "ServiceUnavailable")
        if self.is_forbidden(*asked):
            return self._refused(environ, start_response, "403 Forbidden", "AccessDenied")
        return self._application(environ, start_response)

    def _refused(self, environ, start_response, status, code):
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = b"" if environ["REQUEST_METHOD"] == "HEAD" else _ANSWER.format(code, status).encode()
        start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]


@contextmanager
def running_store():
    """Yield a :class:`Store` that serves, and its address."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.server import MotoRequestHandler
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = Store(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, store, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
