"""Tests examples/kubernetes/inject.py: what it does to pods, that it fails closed, and its answers over TLS.

    python3 tests/systems/kubernetes_inject.py DIRECTORY

Writes the changed pods into the directory, for a check against the schemas of Kubernetes. Needs openssl.
"""

import base64
import copy
import importlib.util
import json
import pathlib
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PORT = 18443
spec = importlib.util.spec_from_file_location("inject", ROOT / "examples/kubernetes/inject.py")
inject = importlib.util.module_from_spec(spec)
spec.loader.exec_module(inject)


def applied(pod, patch):
    pod = copy.deepcopy(pod)
    for change in patch:
        *path, last = change["path"].strip("/").split("/")
        at = pod
        for key in path:
            at = at[int(key)] if isinstance(at, list) else at[key]
        if isinstance(at, list) and change["op"] == "add":
            at.insert(len(at) if last == "-" else int(last), change["value"])
        else:
            at[int(last) if isinstance(at, list) else last] = change["value"]
    return pod


def pod(annotations, containers, **more):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": containers, **more},
    }


ASKS = {"vramtrace.io/inject": "true", "vramtrace.io/cap": "8GiB"}
PLAIN = {"name": "train", "image": "i"}
FULL = {
    "name": "other",
    "image": "i",
    "env": [{"name": "LD_PRELOAD", "value": "/lib/x.so"}, {"name": "A", "value": "1"}],
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
VOLUME = {"name": "v", "emptyDir": {}}


def denied(annotations, *containers):
    try:
        inject.changes(pod(annotations, list(containers)), "i")
    except inject.Denied as why:
        return str(why)
    sys.exit(f"not denied: {annotations} {containers}")


def check_changes(to):
    assert inject.changes(pod({}, [PLAIN]), "i") == [] == inject.changes({"metadata": {}}, "i")
    first = {"name": "first", "image": "i"}
    for number, asked in enumerate(
        [
            pod(ASKS, [PLAIN]),
            pod(ASKS, [PLAIN, FULL], volumes=[VOLUME], initContainers=[first]),
            pod(ASKS | {"vramtrace.io/cap": "0=8GiB,1=50%"}, [FULL], volumes=[VOLUME]),
        ]
    ):
        changed = applied(asked, inject.changes(asked, "registry.example/vramtrace:1"))
        assert inject.changes(changed, "registry.example/vramtrace:1") == [], "a second call changes it again"
        assert changed["spec"]["initContainers"][0]["name"] == "vramtrace"
        for container in changed["spec"]["containers"]:
            env = {variable["name"]: variable["value"] for variable in container["env"]}
            assert env["VRAMTRACE_CAP"] == asked["metadata"]["annotations"]["vramtrace.io/cap"]
            assert env["LD_PRELOAD"].split(":")[0] == inject.LIBRARY
            assert {"name": "vramtrace", "mountPath": "/vramtrace", "readOnly": True} in container["volumeMounts"]
        if number == 1:
            assert env["LD_PRELOAD"] == f"{inject.LIBRARY}:/lib/x.so" and env["A"] == "1"
        (to / f"pod{number}.yaml").write_text(json.dumps(changed))
    without = {"vramtrace.io/inject": "true"}
    for cap in (None, "", "8", "lots", "8GiB; x", "0%", "8GiB\n"):
        assert "give a limit" in denied(without if cap is None else without | {"vramtrace.io/cap": cap}, PLAIN)
    own = PLAIN | {"env": [{"name": "VRAMTRACE_CAP", "value": "100%"}]}
    assert "itself" in denied(ASKS, own)
    secret = PLAIN | {"env": [{"name": "LD_PRELOAD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}
    assert "elsewhere" in denied(ASKS, secret)


def check_server(to):
    key, certificate = to / "tls.key", to / "tls.crt"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run(make, check=True, capture_output=True)
    command = [sys.executable, ROOT / "examples/kubernetes/inject.py", "--certificate", certificate, "--key", key]
    server = subprocess.Popen([*command, "--port", str(PORT)], env={"VRAMTRACE_IMAGE": "i"})
    context = ssl.create_default_context(cafile=certificate)

    def ask(path, body=None):
        request = urllib.request.Request(f"https://localhost:{PORT}{path}", body)
        try:
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, b""

    try:
        for _ in range(50):
            try:
                ask("/healthz")
                break
            except OSError:
                time.sleep(0.1)
        review = {"request": {"uid": "7", "namespace": "n", "object": pod(ASKS, [PLAIN])}}
        status, body = ask("/inject", json.dumps(review).encode())
        response = json.loads(body)["response"]
        assert (status, response["uid"], response["allowed"]) == (200, "7", True)
        patch = json.loads(base64.b64decode(response["patch"]))
        assert applied(review["request"]["object"], patch)["spec"]["initContainers"]
        review["request"]["object"]["metadata"]["annotations"]["vramtrace.io/cap"] = ""
        response = json.loads(ask("/inject", json.dumps(review).encode())[1])["response"]
        assert not response["allowed"] and "vramtrace.io/cap" in response["status"]["message"]
        assert ask("/inject", b"{}")[0] == 400 and ask("/inject", b"x")[0] == 400
    finally:
        server.terminate()
        server.wait()


def main():
    to = pathlib.Path(sys.argv[1])
    check_changes(to)
    check_server(to)
    print("kubernetes_inject: all passed")


if __name__ == "__main__":
    main()
