"""A mutating webhook that puts vramtrace into annotated pods: see inject.yaml.

    VRAMTRACE_IMAGE=registry.example/vramtrace:0.1.0 python3 inject.py --certificate tls.crt --key tls.key [--port 8443]

It denies an annotated pod whose cap is missing or cannot be read, or that it cannot change: a pod that asked for a limit
never runs without one. What it did is logged, a line for each pod.
"""

import argparse
import base64
import http.server
import json
import os
import re
import ssl
import sys

ANNOTATION = "vramtrace.io/inject"
CAP = "vramtrace.io/cap"
PLACE = "/vramtrace"
LIBRARY = f"{PLACE}/libvramtrace.so"
# Of a review. A pod is below the limit of etcd, 1.5 MiB.
MOST_BYTES = 4 << 20
SIZE = r"(?:[1-9][0-9]*(?:\.[0-9]+)?(?:KiB|MiB|GiB|TiB|kB|MB|GB|TB|%))"
A_CAP = re.compile(rf"{SIZE}\Z|[0-9]+={SIZE}(?:,[0-9]+={SIZE})*\Z")


class Denied(Exception):
    pass


def changes(pod, image):
    """The JSON patch of a pod. Empty: it does not ask for it."""
    annotations = pod.get("metadata", {}).get("annotations") or {}
    if annotations.get(ANNOTATION) != "true":
        return []
    cap = annotations.get(CAP, "")
    if not A_CAP.match(cap):
        raise Denied(f"annotation {CAP} is `{cap}`: give a limit, like 8GiB, 50% or 0=8GiB,1=50%")
    spec = pod.get("spec", {})
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        raise Denied("vramtrace runs on Linux alone")
    patch = []

    def add(path, value):
        patch.append({"op": "add", "path": path, "value": value})

    def append(path, there, value):
        add(f"{path}/-" if there else path, value if there else [value])

    if not any(volume.get("name") == "vramtrace" for volume in spec.get("volumes") or []):
        append("/spec/volumes", spec.get("volumes"), {"name": "vramtrace", "emptyDir": {"sizeLimit": "64Mi"}})
    init = spec.get("initContainers") or []
    if not any(container.get("name") == "vramtrace" for container in init):
        copy = {
            "name": "vramtrace",
            "image": image,
            # The pod does not start if the library is not there.
            "command": ["cp", "/libvramtrace.so", LIBRARY],
            "resources": {"limits": {"cpu": "100m", "memory": "32Mi"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "vramtrace", "mountPath": PLACE}],
        }
        # First: other init containers may use the GPU, but the library must be there before any container.
        add("/spec/initContainers/0" if init else "/spec/initContainers", copy if init else [copy])
    for at, container in enumerate(spec.get("containers") or []):
        here = f"/spec/containers/{at}"
        name, env = container.get("name"), container.get("env") or []
        mounts = container.get("volumeMounts") or []
        if not any(mount.get("mountPath") == PLACE for mount in mounts):
            append(f"{here}/volumeMounts", mounts, {"name": "vramtrace", "mountPath": PLACE, "readOnly": True})
        variables = {variable.get("name"): (index, variable) for index, variable in enumerate(env)}
        wanted = {"LD_PRELOAD": LIBRARY, "VRAMTRACE_CAP": cap}
        for variable, value in wanted.items():
            index, there = variables.get(variable, (None, None))
            if there is None:
                append(f"{here}/env", env, {"name": variable, "value": value})
                env = [*env, variable]
            elif "value" not in there:
                raise Denied(f"container {name} takes {variable} from elsewhere: it cannot be set")
            elif variable == "LD_PRELOAD" and not there["value"].startswith(LIBRARY):
                both = f"{LIBRARY}:{there['value']}" if there["value"] else LIBRARY
                patch.append({"op": "replace", "path": f"{here}/env/{index}/value", "value": both})
            elif variable == "VRAMTRACE_CAP" and there["value"] != cap:
                raise Denied(f"container {name} sets VRAMTRACE_CAP itself, and the annotation says {cap}")
    return patch


def answer(review, image):
    request = review["request"]
    pod, response = request["object"], {"uid": request["uid"], "allowed": True}
    name = f"{request.get('namespace')}/{pod.get('metadata', {}).get('generateName') or pod['metadata'].get('name')}"
    try:
        patch = changes(pod, image)
        if patch:
            text = json.dumps(patch).encode()
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}
        print(f"inject: {name!r}: {len(patch)} changes", file=sys.stderr)
    except Denied as why:
        response |= {"allowed": False, "status": {"code": 422, "message": f"vramtrace: {why}"}}
        print(f"inject: {name!r}: denied: {str(why)!r}", file=sys.stderr)
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


class Handler(http.server.BaseHTTPRequestHandler):
    image = ""
    timeout = 10

    def do_GET(self):
        self.reply(200 if self.path == "/healthz" else 404, b"")

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= MOST_BYTES:
            return self.reply(413, b"")
        # An answer that is none denies the pod: failurePolicy is Fail.
        try:
            body = json.dumps(answer(json.loads(self.rfile.read(length)), self.image)).encode()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"inject: not a review of a pod: {error!r}", file=sys.stderr)
            return self.reply(400, b"")
        self.reply(200, body)

    def reply(self, code, body):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """A line for each pod is enough."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--certificate", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--port", type=int, default=8443)
    arguments = parser.parse_args()
    Handler.image = os.environ.get("VRAMTRACE_IMAGE", "")
    if not Handler.image:
        sys.exit("inject.py: VRAMTRACE_IMAGE names no image")
    server = http.server.ThreadingHTTPServer(("", arguments.port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(arguments.certificate, arguments.key)
    # The handshake is made by the connection's thread, so that one that says nothing stops no other.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main()
