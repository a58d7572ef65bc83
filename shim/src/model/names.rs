//! Texts that events refer to by id: names of marks, of kernels, of modules.

use crate::runtime::fallible::MakeRoom;
use crate::runtime::fallible_map::Map;
use crate::runtime::lock::Lock;
use vramtrace_format::Definition;

/// Most distinct texts of one process; later ones get no id.
const NAMES: usize = 1 << 14;

#[derive(Default)]
pub struct Names(Lock<Map<Box<str>, u32>>);

impl Names {
    /// The number of a text; 0 for no text, and for more than are kept. `define` writes its
    /// definition before the number is handed out, and says false when nothing is recorded.
    pub fn id(&self, name: &str, define: impl FnOnce(&Definition) -> bool) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let mut names = self.0.lock();
        if let Some(id) = names.get(name) {
            return *id;
        }
        let id = names.len() as u32 + 1;
        let text = name.to_string();
        if names.len() >= NAMES
            || names.make_room().is_err()
            || !define(&Definition::Text { id, text })
        {
            return 0;
        }
        let _ = names.insert(name.into(), id);
        id
    }
}
