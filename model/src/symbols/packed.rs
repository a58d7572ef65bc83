//! Names to take along: what the libraries of this machine say of a trace's addresses, as
//! definitions of the trace.

use std::cmp::Reverse;
use std::time::Instant;

use rustc_hash::FxHashMap;
use vramtrace_format::layers::Places;
use vramtrace_format::{Definition, Header, NativeName};

use super::native::ResolvedFrame;
use super::{WantedAddresses, ask, path_of, problem, torch_version};
use crate::trace::{Definitions, TORCH_VERSION};

#[derive(Debug, Default)]
pub struct Packed {
    /// To stand behind all others of the trace.
    pub definitions: Vec<Definition>,
    /// Addresses that got a name now, and those that had been asked for before.
    pub addresses: usize,
    pub before: usize,
    /// Libraries that gave no names, and why. One line each.
    pub problems: Vec<String>,
    /// Libraries that were left out because a limit was reached.
    pub left_out: usize,
}

/// Where packing stops.
#[derive(Clone, Copy, Debug)]
pub struct PackLimits {
    /// No library is read after this.
    pub until: Instant,
    /// No library is read after so many addresses.
    pub addresses: usize,
}

impl Packed {
    /// For all stacks of a trace, but for what it carries already. Nothing is packed for a library
    /// that is missing or another one now: it may be found later, or elsewhere.
    pub fn of(definitions: &Definitions, header: &Header) -> Packed {
        Packed::within(definitions, header, None)
    }

    /// As [`Packed::of`], up to limits: libraries with many addresses first.
    pub fn within(
        definitions: &Definitions,
        header: &Header,
        limits: Option<PackLimits>,
    ) -> Packed {
        let stacks = definitions.stacks();
        let all = stacks.ids().filter_map(|id| stacks.get(id));
        let mut texts = Texts { free: definitions.free_texts(), known: FxHashMap::default() };
        let mut packed = Packed::default();
        let places = Places::of(header);
        let mut modules: Vec<_> =
            WantedAddresses::of(stacks, header, all).modules.into_iter().collect();
        modules.sort_by_key(|(index, addresses)| (Reverse(addresses.len()), *index));
        for (index, addresses) in modules {
            // Addresses in no library have no names anywhere.
            let Some(module) = index.map(|index| &stacks.modules()[index as usize]) else {
                continue;
            };
            let mut wanted: Vec<u64> = addresses.iter().map(|(_, at)| *at).collect();
            wanted.sort_unstable();
            wanted.retain(|at| stacks.names(module, *at).is_none());
            packed.before += addresses.len() - wanted.len();
            // In a damaged trace the number may stand for two.
            if stacks.modules().iter().filter(|other| other.id == module.id).count() > 1 {
                continue;
            }
            let is_reached = |limits: PackLimits| {
                Instant::now() >= limits.until || packed.addresses >= limits.addresses
            };
            if !wanted.is_empty() && limits.is_some_and(is_reached) {
                packed.left_out += 1;
                continue;
            }
            let path = path_of(module, header);
            let found = ask(definitions.files(), module, &path, &wanted);
            packed.problems.extend(problem(&path, &places, &found));
            if let Ok(found) = found {
                packed.addresses += wanted.len();
                for (address, names) in wanted.into_iter().zip(found.names) {
                    let mut name = |name| texts.name(name, &mut packed.definitions);
                    let names = names.into_iter().map(&mut name).collect();
                    let module = module.id;
                    packed.definitions.push(Definition::Names { module, address, names });
                }
            }
        }
        if definitions.setting(TORCH_VERSION).is_none()
            && let Some(value) = torch_version(definitions, header)
        {
            let name = TORCH_VERSION.into();
            packed.definitions.push(Definition::Setting { name, value });
        }
        packed
    }
}

/// Each text is written once.
struct Texts<I> {
    free: I,
    known: FxHashMap<String, u32>,
}

impl<I: Iterator<Item = u32>> Texts<I> {
    fn name(&mut self, name: ResolvedFrame, definitions: &mut Vec<Definition>) -> NativeName {
        let mut id = |text| self.id(text, definitions);
        let (function, file) = (id(name.function), id(name.file));
        NativeName { function, file, line: name.line.unwrap_or(0) }
    }

    fn id(&mut self, text: Option<String>, definitions: &mut Vec<Definition>) -> u32 {
        let Some(text) = text else { return 0 };
        if let Some(known) = self.known.get(&text) {
            return *known;
        }
        let Some(id) = self.free.next() else { return 0 };
        definitions.push(Definition::Text { id, text: text.clone() });
        self.known.insert(text, id);
        id
    }
}
