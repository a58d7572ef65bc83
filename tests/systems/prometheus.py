"""The checks of test-prometheus.sh."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from recorded_processes import ROOT, RecordedProcesses, ready, tell

BIN = Path(os.environ.get("VRAMTRACE_BIN") or ROOT / "target" / "debug")
EXAMPLES = ROOT / "examples" / "prometheus"
wrong = []


def need(name):
    path = shutil.which(name, path=os.environ.get("PROMETHEUS_BIN", "") + os.pathsep + os.environ["PATH"])
    if path is None:
        print(f"test-prometheus: {name} was not found (Debian: apt-get install prometheus)", file=sys.stderr)
        sys.exit(2)
    return path


def check(what, right, detail=""):
    print(f"{'ok   ' if right else 'WRONG'} {what}{'' if right else ': ' + str(detail)}", flush=True)
    if not right:
        wrong.append(what)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


prometheus, promtool = need("prometheus"), need("promtool")
node = RecordedProcesses(BIN, VRAMTRACE_SIM_NVML="busy:0")
node.environment["VRAMTRACE_SIM_STATE"] = str(node.work / "state")
exporter_port, prometheus_port = free_port(), free_port()
processes = [node.recorded("4711", rank, VRAMTRACE_CAP="4GiB") for rank in range(2)]
processes.append(node.recorded("4712", 0, VRAMTRACE_CAP="1GiB", VRAMTRACE_CAP_MODE="warn"))
for process in processes:
    ready(process)
    tell(process, "a 1500")
tell(processes[0], "a 4000")
node.start(BIN / "vramtrace", "metrics", "--listen", f"127.0.0.1:{exporter_port}", stderr=subprocess.DEVNULL)
url = f"http://127.0.0.1:{exporter_port}/metrics"
for _ in range(100):
    try:
        if "vramtrace_trace_age_seconds" in get(url) and "vramtrace_nvml_age_seconds" in get(url):
            break
    except OSError:
        pass
    time.sleep(0.2)

plain = get(url)
ran = subprocess.run([promtool, "check", "metrics"], input=plain, capture_output=True, text=True)
check("promtool check metrics", ran.returncode == 0, ran.stdout + ran.stderr)
ran = subprocess.run([promtool, "check", "rules", EXAMPLES / "rules.yaml"], capture_output=True, text=True)
check("promtool check rules", ran.returncode == 0, ran.stdout + ran.stderr)
ran = subprocess.run([promtool, "test", "rules", EXAMPLES / "rules-test.yaml"], capture_output=True, text=True)
check("promtool test rules: each alert fires, and only when it should", ran.returncode == 0, ran.stdout + ran.stderr)
ran = subprocess.run([promtool, "check", "config", EXAMPLES / "prometheus.yaml"], capture_output=True, text=True)
check("promtool check config", ran.returncode == 0, ran.stdout + ran.stderr)

config = (EXAMPLES / "prometheus.yaml").read_text()
config = config.replace("127.0.0.1:9477", f"127.0.0.1:{exporter_port}").replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s")
(node.work / "prometheus.yaml").write_text(config)
shutil.copy(EXAMPLES / "rules.yaml", node.work / "rules.yaml")
log = open(node.work / "prometheus.log", "w")
node.start(
    prometheus,
    f"--config.file={node.work / 'prometheus.yaml'}",
    f"--storage.tsdb.path={node.work / 'data'}",
    f"--web.listen-address=127.0.0.1:{prometheus_port}",
    stdout=log,
    stderr=log,
    env=os.environ,
)
api = f"http://127.0.0.1:{prometheus_port}/api/v1"


def query(expression):
    return json.loads(get(f"{api}/query?" + urllib.parse.urlencode({"query": expression})))["data"]["result"]


def value(expression):
    found = query(expression)
    return float(found[0]["value"][1]) if found else None


for _ in range(150):
    try:
        if (value("count_over_time(vramtrace_page_problems[1m])") or 0) >= 3:
            break
    except OSError:
        pass
    time.sleep(0.2)
targets = json.loads(get(f"{api}/targets"))["data"]["activeTargets"]
check("the target is up", [target["health"] for target in targets] == ["up"], targets)
check("3 processes", value("sum(vramtrace_processes)") == 3, query("vramtrace_processes"))
series = [line for line in get(url).splitlines() if line[0] != "#"]
check("Prometheus takes all series", value("scrape_samples_scraped") == len(series), value("scrape_samples_scraped"))
check("the job is the batch system's", value('sum(vramtrace_processes{job="4711"})') == 2)
check("the refusal is counted", value('sum(vramtrace_refusals_total{by="cap"})') == 1)

# An out-of-memory that ends its process is an increase, and its series end.
processes[0].stdin.close()
processes[0].wait()
for _ in range(200):
    if value('sum(increase(vramtrace_node_out_of_memory_total{cause="cap"}[1m]))'):
        break
    time.sleep(0.2)
check("an ended process's out-of-memory is an increase",
      (value('sum(increase(vramtrace_node_out_of_memory_total{cause="cap"}[1m]))') or 0) > 0)
check("its series ended", value('count(vramtrace_processes{job="4711",rank="0"})') is None)


def queries_of_dashboard():
    dashboard = json.loads((EXAMPLES / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*").replace("$__range:1m", "1h:1s")
            yield f"dashboard: {panel['title']} {target['refId']}", expression


def queries_of_alerts():
    groups = json.loads(get(f"{api}/rules"))["data"]["groups"]
    for rule in groups[0]["rules"]:
        yield f"alert: {rule['name']}", rule["query"]


# What these processes cannot show: nothing grows, no cache, all is idle for a few seconds only.
may_be_empty = re.compile("Idle|Time until|Growth|Leaks|Untraced|no utilization|Neighbour|RecorderStopped|Within30")
for name, expression in [*queries_of_dashboard(), *queries_of_alerts()]:
    unknown = [metric for metric in re.findall(r"vramtrace_\w+", expression) if f"{metric}" not in plain]
    try:
        found = query(expression)
        check(f"{name}: {len(found)} series", found or may_be_empty.search(name), "no series")
    except urllib.error.HTTPError as error:
        check(name, False, error.read().decode())
    never = [metric for metric in unknown if metric not in
             {"vramtrace_exhaustion_seconds", "vramtrace_growth_bytes_per_second", "vramtrace_leaks"}]
    if never:
        check(f"{name}: metrics exist", False, never)
firing = {rule["name"]: rule["state"] for rule in json.loads(get(f"{api}/rules"))["data"]["groups"][0]["rules"]}
check("the alert of the cap that only warns is pending or firing", firing["GpuCapNotInForce"] != "inactive", firing)
version = subprocess.run([prometheus, "--version"], capture_output=True, text=True)
print((version.stdout or version.stderr).splitlines()[0])
print(f"{'WRONG: ' + ', '.join(wrong) if wrong else 'all checks passed'}")
sys.exit(1 if wrong else 0)
