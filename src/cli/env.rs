//! `vramtrace env`: prints the variables that start the recorder, in the syntax of the place where they are set.

use serde_json::{Map, json};
use vramtrace_format::capspec;
use vramtrace_reader::report::shell::quoted;

use crate::console::{self, message, print};
use crate::error::{DONE, Failure, Outcome};
use crate::launch::library;

#[derive(clap::Args)]
#[command(
    long_about = "Print the variables that start the recorder, in the syntax of the target where they are \
        set, with the absolute path of the library. stderr says where to paste the text.",
    after_help = "Examples:\n  \
        eval \"$(vramtrace env)\"\n  \
        vramtrace env --cap 12GiB --out /scratch/traces/rank%r.vtrace\n  \
        vramtrace env --for file --out /scratch/traces/ >> .deepspeed_env"
)]
pub struct Args {
    /// Where it is pasted
    #[arg(long = "for", value_enum, value_name = "PLACE", default_value = "sh")]
    target: PasteTarget,
    /// A cap for each process, as in `vramtrace run --cap`
    #[arg(long, value_name = "SPEC")]
    cap: Option<String>,
    /// Where traces go, as VRAMTRACE_OUT has it [default: the program's working directory]
    #[arg(long, value_name = "DIR|FILE|PATTERN")]
    out: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PasteTarget {
    /// A shell or a batch script, before the program or its launcher (srun, torchrun)
    Sh,
    /// Lines NAME=VALUE: .deepspeed_env, EnvironmentFile= of systemd
    File,
    /// A JSON object: runtime_env of Ray, kernel.json of Jupyter, launch.json of VS Code
    Json,
}

impl PasteTarget {
    /// Where to paste the text, for stderr.
    fn hint(self) -> &'static str {
        match self {
            PasteTarget::Sh => {
                "for a shell: eval \"$(vramtrace env)\"; every node must have the library at this path"
            }
            PasteTarget::File => "for .deepspeed_env, or EnvironmentFile= of a systemd unit",
            PasteTarget::Json => {
                "for `env_vars` in runtime_env of ray.init, `env` in kernel.json of Jupyter or in \
                 launch.json of VS Code"
            }
        }
    }
}

pub fn run(args: Args) -> Outcome {
    let Args { target, cap, out } = args;
    if let Some(cap) = &cap {
        capspec::parse(cap).map_err(|why| Failure::new(format!("--cap `{cap}`: {why}")))?;
    }
    if let Some(bad) = [&cap, &out].into_iter().flatten().find(|it| it.contains('\n')) {
        return Err(Failure::new(format!("`{bad}`: a variable cannot hold a line break")));
    }
    let library = library::find_preloadable()?;
    let not_text = || {
        let shown = library.display();
        Failure::new(format!("{shown}: the path is not UTF-8: install vramtrace elsewhere"))
    };
    let path = library.to_str().ok_or_else(not_text)?;
    let mut variables = vec![("LD_PRELOAD", path), ("NVTX_INJECTION64_PATH", path)];
    variables.extend(out.as_deref().map(|out| ("VRAMTRACE_OUT", out)));
    variables.extend(cap.as_deref().map(|cap| ("VRAMTRACE_CAP", cap)));
    let all = |line: &dyn Fn(&str, &str) -> String| -> String {
        variables.iter().map(|(name, value)| line(name, value)).collect()
    };
    let text = match target {
        PasteTarget::Sh => all(&|name, value| {
            let others = match name {
                "LD_PRELOAD" => "\"${LD_PRELOAD:+:$LD_PRELOAD}\"",
                _ => "",
            };
            format!("export {name}={}{others}\n", quoted(value))
        }),
        PasteTarget::File => all(&|name, value| format!("{name}={value}\n")),
        PasteTarget::Json => {
            let object = variables.iter().map(|(name, value)| (name.to_string(), json!(value)));
            console::json(&object.collect::<Map<_, _>>())?
        }
    };
    message(target.hint());
    print(&text)?;
    Ok(DONE)
}
