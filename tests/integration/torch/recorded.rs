//! What a trace records of PyTorch's blocks, and programs over a stand-in of its libraries.

use std::collections::HashMap;
use std::path::Path;

use testkit::torch_stand_ins::libraries;
use testkit::{Run, Setup};
use vramtrace_format::{
    Alloc, Definition, DeviceId, Event, Kind, SiteId, Space, StackFlags, StackId, TraceReader,
};

/// Its blocks overlap, or lie where no memory is, and its totals are made up.
pub fn setup(library: &str, mode: &str) -> Setup {
    let library = libraries().join(library);
    Setup::simulated().devices("2x24GiB").arg(library.display()).arg(mode).contradicts()
}

pub struct Site {
    pub kind: Option<Kind>,
    pub device: DeviceId,
    pub api: String,
    pub stream: u64,
    pub pool: u16,
}

/// Names of the libraries of native frames, and of Python's functions, innermost first.
pub struct Stack {
    pub flags: StackFlags,
    pub native: Vec<String>,
    pub python: Vec<String>,
}

#[derive(Default)]
pub struct Recorded {
    pub events: Vec<Event>,
    pub sites: HashMap<SiteId, Site>,
    pub settings: Vec<(String, String)>,
    pub stacks: HashMap<StackId, Stack>,
    /// Of stacks of PyTorch's backward pass, the stack of the forward operation.
    pub forward: HashMap<StackId, StackId>,
}

impl Recorded {
    pub fn by(run: &Run) -> Recorded {
        Recorded::of(&run.only_trace())
    }

    pub fn of(trace: &Path) -> Recorded {
        let bytes = testkit::trace_bytes(trace);
        let reader = TraceReader::new(&bytes).unwrap();
        let mut all = Recorded::default();
        let (mut apis, mut codes, mut modules) = (HashMap::new(), HashMap::new(), Vec::new());
        for definition in reader.definitions() {
            match definition {
                Definition::Api { id, name } => drop(apis.insert(id, name)),
                Definition::Code { id, name, .. } => drop(codes.insert(id, name)),
                Definition::Module { start, end, path, .. } => modules.push((start..end, path)),
                Definition::Setting { name, value } => all.settings.push((name, value)),
                Definition::Site { id, api, kind, device, stream, pool, .. } => {
                    let site = Site { kind, device, api: apis[&api].clone(), stream, pool: pool.0 };
                    all.sites.insert(id, site);
                }
                Definition::Stack { id, flags, native, python, .. } => {
                    let library = |at: &u64| {
                        let module = modules.iter().find(|(range, _)| range.contains(at));
                        let name = module.and_then(|(_, path)| path.rsplit('/').next());
                        name.unwrap_or_default().to_string()
                    };
                    let native = native.iter().map(library).collect();
                    let python = python.iter().map(|frame| codes[&frame.code].clone()).collect();
                    all.stacks.insert(id, Stack { flags, native, python });
                }
                Definition::Forward { stack, forward } => {
                    assert!(all.stacks[&stack].python.is_empty(), "its own line is known");
                    assert!(all.stacks.contains_key(&forward), "defined before");
                    all.forward.insert(stack, forward);
                }
                _ => {}
            }
        }
        all.events.extend(reader.events().map(|stamped| stamped.event));
        all
    }

    /// The blocks in order, also those of samples.
    pub fn blocks(&self) -> impl Iterator<Item = Alloc> {
        let block = |event: &Event| match event {
            Event::Alloc(alloc) | Event::SampledAlloc { alloc, .. } => Some(*alloc),
            _ => None,
        };
        self.events.iter().filter_map(block).filter(|alloc| alloc.space == Space::Block)
    }

    pub fn has_setting(&self, name: &str) -> bool {
        self.settings.iter().any(|(known, _)| known == name)
    }
}
