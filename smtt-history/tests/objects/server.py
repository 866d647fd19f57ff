"""moto as a server of S3's protocol: `server.py PORT`. It ends with its standard input."""

import os
import sys
import threading

port = int(sys.argv[1])
os.environ["MOTO_PORT"] = str(port)

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

inner = DomainDispatcherApplication(create_backend_app)
# moto checks a condition and writes in two steps. With the lock they are one, as in S3.
lock = threading.Lock()


def application(environ, start_response):
    with lock:
        return list(inner(environ, start_response))


def watch():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=watch, daemon=True).start()
run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)
