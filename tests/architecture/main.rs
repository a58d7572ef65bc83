//! Imports run in one direction: from the upper rooms of a crate to the lower ones.

mod imports;
mod lines;
mod opening;
mod sources;
mod statics;
mod test_files;
mod tokens;

use std::path::Path;

use imports::Layout;

const CRATES: [Layout; 5] = [
    Layout {
        folder: "format/src",
        library: "vramtrace_format",
        divided: "",
        layers: "error scalar; kind; physical; size; atomics block_size cells cgroup holes \
            host_switch ids lines memory outspec proc recordspec sampling secrets shown \
            stackspec torch_conf uuid; address_space capspec record; header oom escape policy \
            summary; layers pages window; read stack_order write",
        apart: &[],
    },
    Layout {
        folder: "shim/src",
        library: "vramtrace",
        divided: "hooks",
        layers: "runtime; driver config; model; interpose; capture; trace_writer; \
            hooks/process; hooks/call; hooks/families; hooks/entry; hooks",
        // They name no type of CUDA: another vendor's driver would stand beside ours.
        apart: &[("model", "driver"), ("interpose", "driver")],
    },
    Layout {
        folder: "model/src",
        library: "vramtrace_model",
        divided: "analysis",
        layers: "facts spans units; trace; replay symbols; allocator; analysis/engines; \
            analysis/memory analysis/parallel; analysis/roles; analysis/steps; \
            analysis/diagnosis; analysis/fits; analysis/process; analysis/engine_use \
            analysis/runs analysis/verify; analysis/verdict; analysis",
        apart: &[],
    },
    Layout {
        folder: "src",
        library: "vramtrace_reader",
        divided: "",
        layers: "driver error pprof; files; console trace; report export import; \
            live_processes; launch; doctor metrics; cli",
        apart: &[],
    },
    Layout {
        folder: "sim/src",
        library: "vramtrace_sim",
        divided: "",
        layers: "system ranges error; fault param host_function; abi; aperture image pool_state \
            graph_memory touched; shared; device; memory; driver; contexts shared_file; \
            graph_cost; graphs; captures; streams; array capture host managed module pool \
            device_calls; launch stream vmm; context heap ipc nvml; copy graph; entry",
        apart: &[],
    },
];

#[test]
fn imports_run_downwards() {
    for layout in CRATES {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(layout.folder);
        let violations = layout.violations(&sources::read(&folder));
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    }
}
