//! `vramtrace env`: prints the variables that start the recorder, in the syntax of a shell, a scheduler or a
//! configuration file.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::console::{json, message, print};
use vramtrace_reader::report::shell::quoted;

use crate::error::{DONE, Failure, Outcome};
use crate::launch::library;
use vramtrace_format::{capspec, outspec};

#[derive(clap::Args)]
#[command(
    long_about = "Print the variables that start the recorder, in the syntax of the place where they are \
        set, with the absolute path of the library. stderr says where to paste the text.",
    after_help = "Examples:\n  \
        eval \"$(vramtrace env)\"\n  \
        vramtrace env --for slurm --cap 12GiB\n  \
        vramtrace env --for deepspeed --out /scratch/traces/ >> .deepspeed_env"
)]
pub struct Args {
    /// Where it is pasted
    #[arg(long = "for", value_enum, value_name = "PLACE", default_value = "sh")]
    place: Place,
    /// A cap for each process, as in `vramtrace run --cap`
    #[arg(long, value_name = "SPEC")]
    cap: Option<String>,
    /// Where traces go, as VRAMTRACE_OUT has it [default: the program's working directory]; for a
    /// container a directory of the host, which is mounted at the same path
    #[arg(long, value_name = "DIR|FILE|PATTERN")]
    out: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Place {
    Sh,
    Docker,
    Compose,
    Kubernetes,
    Slurm,
    Systemd,
    Ray,
    Deepspeed,
    Mpirun,
    Torchrun,
    Jupyter,
    Vscode,
}

/// Directory for traces inside a container: the mount point of a host directory.
const IN_CONTAINER: &str = "/vramtrace/";
/// That directory, below the one in which the container is started.
const ON_HOST: &str = "vramtrace";
/// Directory for traces of a systemd service.
const OF_SERVICE: &str = "/var/lib/vramtrace/";

pub fn run(args: Args) -> Outcome {
    if let Some(cap) = &args.cap {
        capspec::parse(cap).map_err(|why| Failure::new(format!("--cap `{cap}`: {why}")))?;
    }
    if let Some(bad) = [&args.cap, &args.out].into_iter().flatten().find(|it| it.contains('\n')) {
        return Err(Failure::new(format!("`{bad}`: a variable cannot hold a line break")));
    }
    let library = library::find_preloadable()?;
    let text = args.place.text(&library, args.cap.as_deref(), args.out.as_deref())?;
    message(args.place.hint());
    print(&text)?;
    Ok(DONE)
}

impl Place {
    /// Where to paste the text, for stderr.
    fn hint(self) -> &'static str {
        match self {
            Place::Sh => "for a shell: eval \"$(vramtrace env)\"",
            Place::Docker => "a command; replace IMAGE and what follows it",
            Place::Compose => "for compose.yaml; replace SERVICE by the name of your service",
            Place::Kubernetes => {
                "for a pod; the library must lie at this path on the node (examples/kubernetes \
                 shows an image that brings it)"
            }
            Place::Slurm => {
                "for a batch script, before srun; every node must have the library at this path"
            }
            Place::Systemd => "for `systemctl edit UNIT`, then restart the unit",
            Place::Ray => "for the driver program; every node must have the library at this path",
            Place::Deepspeed => "for the file .deepspeed_env in the home or working directory",
            Place::Mpirun => "a command; the first is Open MPI's, the second MPICH's and Intel's",
            Place::Torchrun => "a command for each node; its workers inherit the environment",
            Place::Jupyter => {
                "for ~/.local/share/jupyter/kernels/vramtrace/kernel.json; the kernel is then in \
                 the launcher"
            }
            Place::Vscode => "for `configurations` in .vscode/launch.json",
        }
    }

    fn text(self, library: &Path, cap: Option<&str>, out: Option<&str>) -> Result<String, Failure> {
        let Some(path) = library.to_str() else {
            let shown = library.display();
            return Err(Failure::new(format!(
                "{shown}: the path is not UTF-8: install vramtrace elsewhere"
            )));
        };
        let folder = library.parent().and_then(Path::to_str).unwrap_or("/");
        let in_container = matches!(self, Place::Docker | Place::Compose | Place::Kubernetes);
        let mounted = out.filter(|_| in_container).map(Mounted::of).transpose()?.flatten();
        let out = match (self, &mounted) {
            (_, Some(mounted)) => Some(mounted.out.as_str()),
            _ if out.is_some() => out,
            (Place::Docker | Place::Compose | Place::Kubernetes, _) => Some(IN_CONTAINER),
            (Place::Systemd, _) => Some(OF_SERVICE),
            _ => None,
        };
        let inside = mounted.as_ref().map_or(IN_CONTAINER, |mounted| &mounted.directory);
        let mut variables = vec![("LD_PRELOAD", path), ("NVTX_INJECTION64_PATH", path)];
        variables.extend(out.map(|out| ("VRAMTRACE_OUT", out)));
        variables.extend(cap.map(|cap| ("VRAMTRACE_CAP", cap)));
        let all = |line: &dyn Fn(&str, &str) -> String| -> String {
            variables.iter().map(|(name, value)| line(name, value)).collect()
        };
        let words = || all(&|name, value| format!("{name}={} ", quoted(value)));
        let of_json: Map<String, Value> =
            variables.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
        Ok(match self {
            Place::Sh | Place::Slurm => {
                let mut text = all(&|name, value| match name {
                    "LD_PRELOAD" => format!(
                        "export LD_PRELOAD={}\"${{LD_PRELOAD:+:$LD_PRELOAD}}\"\n",
                        quoted(value)
                    ),
                    _ => format!("export {name}={}\n", quoted(value)),
                });
                if self == Place::Slurm {
                    text.push_str("srun --export=ALL python train.py\n");
                }
                text
            }
            Place::Docker => {
                let mut text =
                    format!("docker run --gpus all \\\n  --volume {folder}:{folder}:ro \\\n");
                let volume = match &mounted {
                    Some(Mounted { directory, .. }) => quoted(&format!("{directory}:{directory}")),
                    None => format!("\"$PWD/{ON_HOST}:{IN_CONTAINER}\""),
                };
                let _ = writeln!(text, "  --volume {volume} \\");
                text += &all(&|name, value| format!("  --env {name}={} \\\n", quoted(value)));
                text + "  IMAGE python train.py\n"
            }
            Place::Compose => format!(
                "services:\n  SERVICE:\n    environment:\n{}    volumes:\n      - {}\n      - {}\n",
                all(&|name, value| format!("      {name}: {}\n", json!(value))),
                json!(format!("{folder}:{folder}:ro")),
                json!(match &mounted {
                    Some(Mounted { directory, .. }) => format!("{directory}:{directory}"),
                    None => format!("./{ON_HOST}:{IN_CONTAINER}"),
                }),
            ),
            Place::Kubernetes => format!(
                "spec:\n  containers:\n    - name: CONTAINER\n      env:\n{}      volumeMounts:\n        \
                 - {{name: vramtrace, mountPath: {folder}, readOnly: true}}\n        \
                 - {{name: traces, mountPath: {}}}\n  volumes:\n    \
                 - {{name: vramtrace, hostPath: {{path: {folder}}}}}\n    \
                 - {{name: traces, {}}}\n",
                all(&|name, value| format!(
                    "        - {{name: {name}, value: {}}}\n",
                    json!(value)
                )),
                json!(inside),
                match &mounted {
                    Some(Mounted { directory, .. }) => {
                        let path = json!(directory);
                        format!("hostPath: {{path: {path}, type: DirectoryOrCreate}}")
                    }
                    None => "emptyDir: {}".to_string(),
                },
            ),
            Place::Systemd => {
                // A percent sign is a specifier there, a dollar sign is none in Environment=.
                let value = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"");
                let line = |name: &str, text: &str| {
                    format!("Environment=\"{name}={}\"\n", value(text).replace('%', "%%"))
                };
                format!("[Service]\n{}StateDirectory=vramtrace\n", all(&line))
            }
            Place::Ray => {
                format!("ray.init(runtime_env={})\n", json!({ "env_vars": of_json }))
            }
            Place::Deepspeed => all(&|name, value| format!("{name}={value}\n")),
            Place::Mpirun => format!(
                "mpirun {}python train.py\nmpiexec {}python train.py\n",
                all(&|name, value| format!("-x {name}={} ", quoted(value))),
                all(&|name, value| format!("-genv {name} {} ", quoted(value))),
            ),
            Place::Torchrun => format!("{}torchrun --nproc-per-node 8 train.py\n", words()),
            Place::Jupyter => json(&json!({
                "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                "display_name": "Python 3 (vramtrace)",
                "language": "python",
                "env": of_json,
            }))?,
            Place::Vscode => json(&json!({
                "name": "Python: this file, recorded by vramtrace",
                "type": "debugpy",
                "request": "launch",
                "program": "${file}",
                "console": "integratedTerminal",
                "env": of_json,
            }))?,
        })
    }
}

/// A directory of the host that a container has at the same path: a trace that the recorder names there is
/// found under that name here.
struct Mounted {
    directory: String,
    /// The value of VRAMTRACE_OUT.
    out: String,
}

impl Mounted {
    /// `None`: nothing is recorded.
    fn of(out: &str) -> Result<Option<Mounted>, Failure> {
        let wrong = |why: &str| Failure::new(format!("--out `{out}`: {why}"));
        let parsed = outspec::parse(out.as_bytes()).map_err(|why| wrong(&why.to_string()))?;
        if !matches!(parsed, outspec::Out::Pattern(_)) {
            return Ok(None);
        }
        let last = out.rsplit('/').next().unwrap_or_default();
        let is_file = last.contains('%') || last.ends_with(&format!(".{}", outspec::EXTENSION));
        let (directory, file) = match is_file {
            true => (&out[..out.len() - last.len()], last),
            false => (out, ""),
        };
        if directory.contains(['%', ':']) {
            return Err(wrong("a directory with a % or a colon in its path cannot be mounted"));
        }
        let directory = if directory.is_empty() { "." } else { directory };
        let directory = std::path::absolute(directory).map_err(|why| wrong(&why.to_string()))?;
        let directory = directory.to_str().ok_or_else(|| wrong("is not UTF-8"))?;
        let directory = directory.trim_end_matches("/.").trim_end_matches('/').to_string();
        Ok(Some(Mounted { out: format!("{directory}/{file}"), directory }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_doubles_percent_signs() {
        let text = Place::Systemd.text(Path::new("/opt/l.so"), Some("50%"), Some("/t/%p.vtrace"));
        let text = text.unwrap();
        assert!(text.contains("Environment=\"VRAMTRACE_OUT=/t/%%p.vtrace\"\n"), "{text}");
        assert!(text.contains("Environment=\"VRAMTRACE_CAP=50%%\"\n"), "{text}");
    }
}
