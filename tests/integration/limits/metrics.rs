//! `vramtrace metrics`: the figures of running processes, in other namespaces too, until they end; bad
//! pages, clients and addresses.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::{InteractiveProgram, Setup, SharedMemory, eventually, permitted, vramtrace};

use crate::hostile_pages::while_it_changes;
use crate::namespaces::child_of;

const MIB: f64 = 1048576.0;

/// A job that no other test has: root sees the processes of all tests.
fn job(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn listening(mut command: Command) -> Command {
    command.args(["metrics", "--listen", "127.0.0.1:0"]);
    command
}

/// The series of a job: name and labels without those of the process, and the value.
fn of_job(text: &str, job: &str) -> BTreeMap<String, f64> {
    let label = format!("job=\"{job}\"");
    let lines = text.lines().filter(|line| !line.starts_with('#') && line.contains(&label));
    let series = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap();
        let own = ["by=", "role=", "cause=", "reason=", "verdict=", "library="];
        let labels = labels.trim_end_matches('}').split(',');
        let labels: Vec<&str> =
            labels.filter(|label| own.iter().any(|own| label.starts_with(own))).collect();
        (format!("{name}{{{}}}", labels.join(",")), value.parse().unwrap())
    });
    series.collect()
}

/// `vramtrace metrics --listen`, until it is dropped.
struct Exporter {
    child: Child,
    address: String,
}

impl Exporter {
    fn start(memory: &SharedMemory, sim: &[(&str, &str)]) -> Exporter {
        let command = Command::new(vramtrace().get_program());
        let mut command = listening(command);
        command.env("XDG_RUNTIME_DIR", &memory.0).env_remove("VRAMTRACE_LIVE_DIR");
        Exporter::spawn(command.envs(sim.iter().copied()))
    }

    fn spawn(command: &mut Command) -> Exporter {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit("metrics at ").next().unwrap().to_string();
        Exporter { child, address }
    }

    fn port(&self) -> String {
        let host = self.address.strip_prefix("http://").unwrap();
        host.strip_suffix("/metrics").unwrap().to_string()
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.port()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The answer may come, and the connection end, before all is sent.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn scrape(&self) -> String {
        let answer = self.ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let (_, text) = answer.split_once("\r\n\r\n").unwrap();
        text.to_string()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// 102 MiB are in use, and a request was refused.
#[track_caller]
fn has_its_page(process: &mut InteractiveProgram) {
    assert_eq!(process.results("a 100, a 3000"), [0, 2]);
    // The page is stored once a millisecond at most.
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(process.result("a 1"), 0);
}

#[test]
fn a_process_is_exported_with_its_labels_and_ends_with_it() {
    let (memory, job) = (SharedMemory::new(), job("labels"));
    let setup = memory.setup().cap("2GiB").env("SLURM_JOB_ID", &job).env("RANK", "3");
    let mut process = InteractiveProgram::start(setup.clone());
    has_its_page(&mut process);
    let text = memory.says(&[], "metrics");
    let line = text.lines().find(|line| line.contains(&job)).unwrap();
    for label in ["rank=\"3\"", "executable=\"interactivec", "device=\"GPU-", "pod=\"\""] {
        assert!(line.contains(label), "{label} in {line}");
    }
    assert!(!text.contains("pid=") && !line.contains(&process.pid().to_string()), "{line}");
    let series = of_job(&text, &job);
    // The driver gives 2 MiB for one.
    let live = 102.0 * MIB;
    for (name, value) in [
        ("vramtrace_memory_cap_bytes{}", 2048.0 * MIB),
        ("vramtrace_memory_peak_bytes{}", live),
        ("vramtrace_refusals_total{by=\"cap\"}", 1.0),
        ("vramtrace_refusals_total{by=\"driver\"}", 0.0),
        ("vramtrace_role_memory_bytes{role=\"unknown\"}", 101.0 * MIB),
        ("vramtrace_processes{}", 1.0),
        ("vramtrace_recorder_stopped{}", 0.0),
    ] {
        assert_eq!(series.get(name), Some(&value), "{name} of {series:#?}");
    }
    let used = series["vramtrace_memory_used_bytes{}"];
    assert!(used > live && used < live + 1024.0 * MIB, "with its context: {used}");
    assert_eq!(series["vramtrace_memory_cap_ratio{}"], used / (2048.0 * MIB));
    let libraries = series.iter().filter(|(name, _)| name.starts_with("vramtrace_library"));
    assert_eq!(libraries.map(|(_, bytes)| bytes).sum::<f64>(), live);
    assert!(!series.contains_key("vramtrace_idle_seconds{}"), "NVML was not asked: unknown");

    // Two with the same labels are one series; what one had counted stays when it ends.
    let exporter = Exporter::start(&memory, &[]);
    let second = InteractiveProgram::start(setup);
    let sums = || {
        let series = of_job(&exporter.scrape(), &job);
        let of = |name: &str| series.get(name).copied();
        (of("vramtrace_processes{}"), of("vramtrace_refusals_total{by=\"cap\"}"))
    };
    assert_eq!(sums(), (Some(2.0), Some(1.0)));
    process.kill();
    assert_eq!(sums(), (Some(1.0), Some(1.0)), "the next scrape knows");
    drop(second);
    assert_eq!(sums(), (None, None));
}

#[test]
fn a_recorder_that_stopped_and_a_cap_that_warns_are_told() {
    let (memory, job) = (SharedMemory::new(), job("stopped"));
    let setup = memory.setup().cap("1GiB").env("VRAMTRACE_CAP_MODE", "warn");
    let mut process = InteractiveProgram::start(setup.env("SLURM_JOB_ID", &job));
    assert_eq!(process.result("a 2000"), 0, "a cap that warns grants it");
    // The trace goes away: recording ends.
    std::fs::remove_file(&process.traces()[0]).unwrap();
    let text = eventually(
        || {
            assert_eq!(process.result("c 1"), 0);
            memory.says(&[], "metrics")
        },
        |text| of_job(text, &job).get("vramtrace_recorder_stopped{}") == Some(&1.0),
    );
    let series = of_job(&text, &job);
    assert_eq!(series["vramtrace_cap_not_in_force{reason=\"warns\"}"], 1.0);
}

/// Days by the program's own clock, of which a small trace has the last hours.
#[test]
fn verdicts_that_rest_on_samples_have_their_resolution() {
    let (memory, whole, bounded) = (SharedMemory::new(), job("whole"), job("bounded"));
    let start = |job: &str, limit: &str, days: u64| {
        let setup = memory.setup().devices("2x512GiB").env("SLURM_JOB_ID", job);
        let setup = setup.env("VRAMTRACE_TEST_CLOCK", "0").env("VRAMTRACE_STACKS", "native");
        let setup = setup.env("VRAMTRACE_MAX", limit);
        let setup = setup.arg(days).arg(300).arg(110).arg("wait");
        InteractiveProgram::start_as("days", setup)
    };
    let processes = [start(&bounded, "4MiB", 3), start(&whole, "1GiB", 1)];
    let text = memory.says(&[], "metrics");
    let [bounded, whole] = [&bounded, &whole].map(|job| of_job(&text, job));
    const NAME: &str = "vramtrace_history_resolution_seconds{}";
    let coarsest = bounded[NAME];
    // As `leaks` says of the same trace.
    let leaks = processes[0].scratch.json("leaks .");
    assert_eq!(leaks["processes"][0]["sampled"]["coarsest_s"], coarsest);
    assert!((600.0..6.0 * 3600.0).contains(&coarsest), "{coarsest}");
    assert!(bounded.contains_key("vramtrace_growth_bytes_per_second{}"), "{bounded:#?}");
    assert!(whole.contains_key("vramtrace_trace_age_seconds{}"), "{whole:#?}");
    assert_eq!(whole.get(NAME), None, "all its events are there");
}

/// Namespaces in which a process may be, as of a pod beside the exporter's. Without the right to make namespaces, a user
/// namespace gives it.
fn apart() -> Option<Vec<&'static str>> {
    let words = |line: &'static str| Vec::from_iter(line.split(' '));
    let apart = words("unshare --pid --ipc --fork --mount-proc");
    let with_user = words("unshare --user --map-root-user --pid --ipc --fork --mount-proc");
    [apart, with_user].into_iter().find(|launcher| permitted(launcher))
}

#[test]
fn a_process_of_other_namespaces_is_exported_until_it_is_killed() {
    let Some(launcher) = apart() else { return };
    let (memory, job) = (SharedMemory::new(), job("apart"));
    // As pods share it: not the runtime directory of anybody.
    let given = memory.0.join("given");
    std::fs::DirBuilder::new().mode(0o777).create(&given).unwrap();
    let setup = || {
        let setup = Setup::simulated().preload().env("SLURM_JOB_ID", &job);
        setup.env("VRAMTRACE_LIVE_DIR", given.as_os_str()).cap("2GiB").through(&launcher)
    };
    let mut process = InteractiveProgram::start(setup());
    has_its_page(&mut process);
    let page = given.join(format!("vramtrace-{}", testkit::user()));
    assert_eq!(std::fs::read_dir(&page).unwrap().count(), 1);

    let look = |launcher: &[&str]| {
        let place = format!("VRAMTRACE_LIVE_DIR={}", given.display());
        let launcher = [launcher, &["env", "-u", "XDG_RUNTIME_DIR", &place]].concat();
        of_job(&memory.says(&launcher, "metrics"), &job)
    };
    // From here, and from a third place, as the agent of a node or a sidecar is.
    for from in [&[][..], &launcher] {
        let series = look(from);
        assert_eq!(series["vramtrace_memory_peak_bytes{}"], 102.0 * MIB, "{series:?}");
        assert_eq!(series["vramtrace_refusals_total{by=\"cap\"}"], 1.0);
        assert_eq!(series["vramtrace_processes{}"], 1.0);
    }
    let command = Command::new(vramtrace().get_program());
    let exporter = Exporter::spawn(listening(command).env("VRAMTRACE_LIVE_DIR", &given));
    assert_eq!(of_job(&exporter.scrape(), &job)["vramtrace_processes{}"], 1.0);
    // SAFETY: a process of the test's own: all of the namespace dies with it.
    unsafe { libc::kill(child_of(process.pid()) as i32, libc::SIGKILL) };
    eventually(|| of_job(&exporter.scrape(), &job).len(), |count| *count == 0);
    assert_eq!(look(&launcher).len(), 0);
    // Its file is removed by the next process that starts there.
    let _next = InteractiveProgram::start(setup());
    assert_eq!(std::fs::read_dir(&page).unwrap().count(), 1);
}

#[test]
fn processes_that_come_and_go_leave_each_scrape_whole() {
    let (memory, job) = (SharedMemory::new(), job("comes"));
    let exporter = Exporter::start(&memory, &[]);
    let stays = InteractiveProgram::start(memory.setup().env("SLURM_JOB_ID", format!("{job}-x")));
    std::thread::scope(|scope| {
        let come_and_go = scope.spawn(|| {
            for _ in 0..12 {
                let setup = memory.setup().env("SLURM_JOB_ID", &job);
                InteractiveProgram::start(setup).kill();
            }
        });
        while !come_and_go.is_finished() {
            let text = exporter.scrape();
            assert_eq!(of_job(&text, &format!("{job}-x"))["vramtrace_processes{}"], 1.0);
        }
    });
    assert_eq!(of_job(&exporter.scrape(), &job).len(), 0);
    drop(stays);
}

#[test]
fn bad_pages_are_counted_and_the_others_exported() {
    let (memory, job) = (SharedMemory::new(), job("bad"));
    let process = InteractiveProgram::start(memory.setup().env("SLURM_JOB_ID", &job));
    let directory = memory.0.join("vramtrace");
    let write = |name: &str, bytes: &[u8], mode: u32| {
        let file = directory.join(name);
        std::fs::write(&file, bytes).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let whole = std::fs::read(&memory.pages()[0]).unwrap();
    // Names of processes in another namespace, which only the page can tell to live.
    let name = |pid: u32| format!("{pid}.7.1.1.5");
    write(&name(1), &[0xFF; 16384], 0o600);
    write(&name(2), &whole[..9000], 0o600);
    write(&name(3), &whole, 0o666);
    std::os::unix::fs::symlink("/dev/zero", directory.join(name(4))).unwrap();
    // The page of another process: it says that it is locked, and is not.
    write(&name(5), &whole, 0o600);
    write(&name(6), b"", 0o600);
    let grows = directory.join(name(7));
    write(&name(7), &whole, 0o600);
    while_it_changes(&grows, || {
        let text = memory.says(&["timeout", "60"], "metrics");
        assert_eq!(of_job(&text, &job)["vramtrace_processes{}"], 1.0);
        let problems = text.lines().find(|line| line.starts_with("vramtrace_page_problems"));
        let problems: f64 = problems.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(problems >= 2.0, "the open file and the link: {problems}");
    });
    drop(process);
}

#[test]
fn addresses_and_clients() {
    let memory = SharedMemory::new();
    let exporter = Exporter::start(&memory, &[]);
    let port = exporter.port();
    assert!(port.starts_with("127.0.0.1:"), "{port}");
    let taken = format!("--listen {port}: Address already in use");
    memory.refuses(&format!("metrics --listen {port}"), &taken);
    memory.refuses("metrics --listen nowhere", "127.0.0.1:9477");

    let status = |request: &str| exporter.ask(request).chars().skip(9).take(3).collect::<String>();
    let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n";
    assert_eq!(status(&format!("{get}\r\n")), "200");
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
    assert_eq!(status(&format!("{get}{}", "x".repeat(100_000))), "431");
    assert_eq!(status("\u{16}\u{3}\u{1}"), "400");
    // Clients that send nothing take all places, for 10 s at most; others are told to come again.
    let silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&port).unwrap()).collect();
    eventually(|| status(&format!("{get}\r\n")), |status| status == "503");
    let began = Instant::now();
    eventually(|| status(&format!("{get}\r\n")), |status| status == "200");
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(silent);
}

#[test]
fn nvml_gives_untraced_memory_and_idle_holders() {
    let (memory, job) = (SharedMemory::new(), job("idle"));
    let state = memory.0.join("state");
    let state = state.to_str().unwrap();
    let setup = memory.setup().env("VRAMTRACE_SIM_STATE", state).env("SLURM_JOB_ID", &job);
    let mut process = InteractiveProgram::start(setup);
    assert_eq!(process.result("a 1000"), 0);
    let libraries = testkit::sim_dir();
    let sim = [
        ("VRAMTRACE_SIM", "1x24GiB"),
        ("VRAMTRACE_SIM_STATE", state),
        ("LD_LIBRARY_PATH", libraries.to_str().unwrap()),
    ];
    for (nvml, known) in [("busy:0", true), ("busy:50", true), ("absent", false)] {
        let nvml_is = [("VRAMTRACE_SIM_NVML", nvml)];
        let exporter = Exporter::start(&memory, &[&sim[..], &nvml_is].concat());
        let text = eventually(
            || exporter.scrape(),
            |text| {
                let series = of_job(text, &job);
                let asked = text.contains("vramtrace_nvml_age_seconds");
                asked == known && (!known || series.contains_key("vramtrace_trace_age_seconds{}"))
            },
        );
        let series = of_job(&text, &job);
        assert_eq!(series["vramtrace_idle_known{}"], f64::from(u8::from(known)), "{nvml}: {text}");
        assert_eq!(series.contains_key("vramtrace_idle_seconds{}"), known, "{nvml}");
        assert_eq!(text.contains("vramtrace_untraced_memory_bytes"), known);
    }
}

#[test]
fn an_out_of_memory_that_ends_its_process_is_counted() {
    let memory = SharedMemory::new();
    let exporter = Exporter::start(&memory, &[]);
    let failures = || {
        let text = exporter.scrape();
        let name = "vramtrace_node_out_of_memory_total{cause=\"cap\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse::<f64>().unwrap()
    };
    let before = failures();
    let setup = memory.setup().cap("2GiB").env("SLURM_JOB_ID", job("ends"));
    let mut process = InteractiveProgram::start(setup);
    assert_eq!(process.result("a 100"), 0);
    eventually(|| exporter.scrape(), |text| text.contains("vramtrace_trace_age_seconds{"));
    // It ends out of memory, since the last request was refused.
    assert_eq!(process.result("a 4000"), 2);
    process.end();
    eventually(failures, |now| *now > before);
}
