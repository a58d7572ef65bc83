//! What a path leads to.

use crate::tree::{FileId, ModuleId, Name, Tree};

/// What a path, or a part of it, stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    Module(ModuleId),
    /// Something that this module defines.
    Item(ModuleId),
    /// Another crate's, or unknown.
    Foreign,
}

/// Aliases that are being resolved: an alias that leads to itself ends there.
type Open = Vec<(ModuleId, String, usize)>;

impl Tree {
    /// All that the path means, one for each namespace (a function and a module may share a name).
    pub fn resolve(&self, at: ModuleId, path: &[String]) -> Vec<Target> {
        self.walk(at, path, &mut vec![])
    }

    /// The file that defines it.
    pub fn file_of(&self, target: Target) -> Option<FileId> {
        match target {
            Target::Module(id) | Target::Item(id) => Some(self.modules[id].file),
            Target::Foreign => None,
        }
    }

    fn walk(&self, at: ModuleId, path: &[String], open: &mut Open) -> Vec<Target> {
        let Some((first, mut rest)) = path.split_first() else { return vec![] };
        let mut now = match first.as_str() {
            "crate" => vec![Target::Module(self.root(at))],
            "self" => vec![Target::Module(at)],
            "super" => self.parent(at),
            name => self.look_up_first(at, name, open),
        };
        while let Some((segment, after)) = rest.split_first() {
            now = now.iter().flat_map(|&target| self.step(target, segment, open)).collect();
            // An item has no modules in it: where a module goes on, it is the module that is meant.
            if !after.is_empty() && now.iter().any(|t| matches!(t, Target::Module(_))) {
                now.retain(|t| matches!(t, Target::Module(_)));
            }
            rest = after;
        }
        now
    }

    fn parent(&self, at: ModuleId) -> Vec<Target> {
        self.modules[at].parent.map(Target::Module).into_iter().collect()
    }

    fn look_up_first(&self, at: ModuleId, name: &str, open: &mut Open) -> Vec<Target> {
        let found = self.look_up(at, name, open);
        match &self.library {
            _ if !found.is_empty() => found,
            Some((library, root)) if library == name => vec![Target::Module(*root)],
            _ => vec![Target::Foreign],
        }
    }

    fn step(&self, target: Target, segment: &str, open: &mut Open) -> Vec<Target> {
        let Target::Module(module) = target else { return vec![target] };
        if segment == "super" {
            return self.parent(module);
        }
        let found = self.look_up(module, segment, open);
        // A name that is not to be found was made by a macro that the module calls.
        if found.is_empty() { vec![Target::Item(module)] } else { found }
    }

    fn look_up(&self, module: ModuleId, name: &str, open: &mut Open) -> Vec<Target> {
        let mut found = vec![];
        for (index, what) in self.modules[module].names.get(name).into_iter().flatten().enumerate()
        {
            match what {
                Name::Module(id) => found.push(Target::Module(*id)),
                Name::Item => found.push(Target::Item(module)),
                Name::Alias(path) => {
                    let key = (module, name.to_owned(), index);
                    if !open.contains(&key) {
                        open.push(key);
                        found.extend(self.walk(module, path, open));
                        open.pop();
                    }
                }
            }
        }
        if found.is_empty() { self.look_up_globs(module, name, open) } else { found }
    }

    fn look_up_globs(&self, module: ModuleId, name: &str, open: &mut Open) -> Vec<Target> {
        let mut found = vec![];
        for (index, path) in self.modules[module].globs.iter().enumerate() {
            let key = (module, format!("*{name}"), index);
            if open.contains(&key) {
                continue;
            }
            open.push(key);
            for target in self.walk(module, path, open) {
                if let Target::Module(from) = target {
                    found.extend(self.look_up(from, name, open));
                }
            }
            open.pop();
        }
        found
    }
}
