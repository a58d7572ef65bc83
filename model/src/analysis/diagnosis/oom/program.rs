//! The option by which a program sizes its memory, where the stack of the request shows the program.

use vramtrace_format::Header;

use super::PostMortem;
use crate::analysis::StackClassifier;
use crate::analysis::engines::{Role, engine_of, purpose};
use crate::symbols::{Frame, Symbols};
use crate::trace::Definitions;

/// Newer versions of jaxlib know both names; to set both is an error.
const XLA: [&str; 2] = ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"];

/// The option whose lower value leaves more memory for the request: `--gpu-memory-utilization=0.89` where its value is in the
/// trace, else `--gpu-memory-utilization`.
pub fn option(one: &PostMortem, header: &Header, definitions: &Definitions) -> Option<String> {
    let stack = one.oom.stack;
    let symbols = Symbols::of(definitions, header, [stack]);
    let frames: Vec<Frame> = symbols.stack(stack).cloned().collect();
    // The words behind an option of the command line.
    let given = |option: &str| {
        let mut words = header.command.iter().flat_map(|word| word.split('='));
        words.find(|word| word.replace('_', "-").starts_with(option)).map(|_| words.next())
    };
    let lower = |option: &str, value: Option<&str>| {
        // A program sees the cap as the size of its card.
        let whole = one.oom.refusal.map(|at| at.refused.limit).filter(|limit| *limit > 0);
        let lacks = one.oom.size.saturating_sub(one.room()?) as f64;
        let share = value?.parse::<f64>().ok()? - lacks / whole.or(one.card_bytes)? as f64;
        let share = (share * 100.0).floor() / 100.0;
        (share > 0.0).then(|| format!("{option}={share:.2}"))
    };
    let share = |option: &str| lower(option, given(option).flatten()).unwrap_or(option.into());
    Some(match engine_of(&frames) {
        Some("vLLM") if given("--kv-cache-memory").is_some() => "--kv-cache-memory".into(),
        Some("vLLM") if given("--gpu-memory-utilization").is_some() => {
            share("--gpu-memory-utilization")
        }
        Some("vLLM") => "--gpu-memory-utilization or --kv-cache-memory".into(),
        Some("SGLang") => share("--mem-fraction-static"),
        Some(_) => match frames.iter().find_map(purpose).map(|purpose| purpose.role) {
            Some(Role::KvCache) => "-c".into(),
            Some(Role::Weights) => "-ngl".into(),
            _ => "-c or -ngl".into(),
        },
        None => {
            let classifier = StackClassifier::new(&symbols, header);
            let library = classifier.key_frames(stack);
            classifier.library_name(&library).filter(|library| *library == "XLA")?;
            let name = if definitions.setting(XLA[1]).is_some() { XLA[1] } else { XLA[0] };
            lower(name, definitions.setting(name)).unwrap_or(name.into())
        }
    })
}

#[cfg(test)]
mod tests {
    use vramtrace_format::physical::GIB;
    use vramtrace_format::{Definition, Event, Kind, Refused, RefusedBy, StackId};

    use crate::analysis::oom::{ended, examine, list};
    use crate::testing::{SECOND, TraceBuilder};
    use crate::trace::Trace;

    /// Asked for 3 GiB by this frame, with 1 GiB of the card's 24 free.
    fn option(command: &str, setting: (&str, &str), function: &str, place: &str) -> Option<String> {
        let mut t = TraceBuilder::new();
        t.header.command = command.split(' ').map(String::from).collect();
        t.setting(setting.0, setting.1);
        if place.ends_with(".py") {
            t.code(1, function, place, 10);
        } else {
            let (minor, name, file) = (Definition::NAMED_NATIVE, function.into(), place.into());
            t.define(Definition::Code {
                id: 1,
                minor,
                name,
                file,
                first_line: 0,
                line_table: Vec::new(),
            });
        }
        t.stack(1, &[], &[1], &[]);
        let site = t.site(Kind::Device, 0);
        let refused = Refused {
            site,
            stack: StackId(1),
            size: 3 * GIB,
            result: 2,
            by: RefusedBy::Driver,
            counted: 0,
            limit: 0,
            driver_free: GIB,
            cache: None,
        };
        t.event(SECOND, Event::Refused(refused));
        let trace = &Trace::of(&t);
        let definitions = &trace.definitions().0;
        let mut found = examine(trace, definitions, &ended(&list(trace, definitions).0.ooms));
        super::option(&found.remove(0), trace.header(), definitions)
    }

    #[test]
    fn the_program_is_known_by_the_line_that_asked() {
        let runner = "/srv/site/vllm/v1/worker/gpu_model_runner.py";
        let (sglang, llama) = ("/v/sglang/srt/model_runner.py", "/opt/llama-server");
        let xla = "/v/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so";
        let old = ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9");
        for (command, setting, function, place, option_is) in [
            (
                "vllm --gpu_memory_utilization=0.5",
                old,
                "f",
                runner,
                "--gpu-memory-utilization=0.41",
            ),
            ("vllm serve", old, "f", runner, "--gpu-memory-utilization or --kv-cache-memory"),
            ("vllm --kv-cache-memory-bytes 9G", old, "f", runner, "--kv-cache-memory"),
            ("sgl --mem-fraction-static 0.88", old, "f", sglang, "--mem-fraction-static=0.79"),
            ("llama-server", old, "llama_kv_cache::llama_kv_cache", llama, "-c"),
            ("llama-server", old, "llama_model_base::load_tensors", llama, "-ngl"),
            ("python3 a.py", old, "xla::Allocate", xla, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.81"),
            ("python3 a.py", ("", ""), "xla::Allocate", xla, "XLA_CLIENT_MEM_FRACTION"),
            ("python3 a.py", old, "f", "/home/me/a.py", ""),
        ] {
            let found = option(command, setting, function, place);
            assert_eq!(found.unwrap_or_default(), option_is, "{command} {function}");
        }
    }
}
