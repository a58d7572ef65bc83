//! The modules of a crate and the names in each.

use std::collections::HashMap;

use syn::{Item, UseTree, Visibility};

use crate::condition::{attributes, only_in_tests};
use crate::sources::Sources;

pub type ModuleId = usize;
pub type FileId = usize;

/// What a name in a module stands for.
#[derive(Debug, Clone)]
pub enum Name {
    Module(ModuleId),
    /// Defined in this module.
    Item,
    /// Brought in by `use`.
    Alias(Vec<String>),
}

pub struct Module {
    pub file: FileId,
    pub parent: Option<ModuleId>,
    pub names: HashMap<String, Vec<Name>>,
    /// `use path::*`
    pub globs: Vec<Vec<String>>,
    /// What the module consists of, without what only tests have.
    pub items: Vec<Item>,
}

/// A crate, or several whose roots share a folder (a library and its binary).
pub struct Tree {
    pub files: Vec<String>,
    pub modules: Vec<Module>,
    /// The name by which the crate's other roots call the library.
    pub library: Option<(String, ModuleId)>,
    /// Macros of `macro_rules!`, by name: the module, and the tokens of the definition.
    pub macros: HashMap<String, (ModuleId, proc_macro2::TokenStream)>,
}

impl Tree {
    /// From the text of all files; `library` is the library's name as others write it.
    pub fn load(sources: &Sources, library: &str) -> Tree {
        let mut tree =
            Tree { files: vec![], modules: vec![], library: None, macros: HashMap::new() };
        for root in ["lib.rs", "main.rs"] {
            if sources.contains_key(root) {
                let module = tree.add_file(sources, root, "", None);
                tree.library.get_or_insert((library.to_owned(), module));
            }
        }
        tree
    }

    /// `folder` is where the files of its child modules lie, with a slash behind.
    fn add_file(
        &mut self,
        sources: &Sources,
        path: &str,
        folder: &str,
        parent: Option<ModuleId>,
    ) -> ModuleId {
        let text = &sources[path];
        let parsed = syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"));
        self.files.push(path.to_owned());
        let file = self.files.len() - 1;
        self.add_module(sources, file, folder, parent, parsed.items)
    }

    fn add_module(
        &mut self,
        sources: &Sources,
        file: FileId,
        folder: &str,
        parent: Option<ModuleId>,
        mut items: Vec<Item>,
    ) -> ModuleId {
        items.retain(|item| !only_in_tests(attributes(item)));
        let id = self.modules.len();
        self.modules.push(Module {
            file,
            parent,
            names: HashMap::new(),
            globs: vec![],
            items: vec![],
        });
        for item in &mut items {
            if let Item::Mod(declared) = item {
                let child = self.add_child(sources, id, folder, declared);
                if let Some(child) = child {
                    self.name(id, declared.ident.to_string(), Name::Module(child));
                }
            } else {
                self.add_names(id, item);
            }
        }
        items.retain(|item| !matches!(item, Item::Mod(_)));
        self.modules[id].items = items;
        id
    }

    /// The module of `mod name;` or `mod name { .. }`. None where its file is not in the folder.
    fn add_child(
        &mut self,
        sources: &Sources,
        parent: ModuleId,
        folder: &str,
        declared: &mut syn::ItemMod,
    ) -> Option<ModuleId> {
        let name = declared.ident.to_string();
        let below = format!("{folder}{name}/");
        if let Some((_, items)) = declared.content.take() {
            let file = self.modules[parent].file;
            return Some(self.add_module(sources, file, &below, Some(parent), items));
        }
        let path = [format!("{folder}{name}.rs"), format!("{below}mod.rs")]
            .into_iter()
            .find(|path| sources.contains_key(path))?;
        Some(self.add_file(sources, &path, &below, Some(parent)))
    }

    fn name(&mut self, module: ModuleId, name: String, what: Name) {
        self.modules[module].names.entry(name).or_default().push(what);
    }

    fn add_names(&mut self, module: ModuleId, item: &Item) {
        match item {
            Item::Use(used) => {
                for leaf in leaves(&used.tree) {
                    match leaf.name {
                        Some(name) => self.name(module, name, Name::Alias(leaf.path)),
                        None => self.modules[module].globs.push(leaf.path),
                    }
                }
            }
            Item::Macro(definition) => {
                let Some(ident) = &definition.ident else { return };
                let tokens = definition.mac.tokens.clone();
                self.macros.insert(ident.to_string(), (module, tokens));
                let exported = definition.attrs.iter().any(|a| a.path().is_ident("macro_export"));
                if exported {
                    let root = self.root(module);
                    if root != module {
                        let path = self.path_of(module, &ident.to_string());
                        self.name(root, ident.to_string(), Name::Alias(path));
                    }
                }
                self.name(module, ident.to_string(), Name::Item);
            }
            Item::ForeignMod(block) => {
                for foreign in &block.items {
                    let ident = match foreign {
                        syn::ForeignItem::Fn(f) => &f.sig.ident,
                        syn::ForeignItem::Static(s) => &s.ident,
                        syn::ForeignItem::Type(t) => &t.ident,
                        _ => continue,
                    };
                    self.name(module, ident.to_string(), Name::Item);
                }
            }
            _ => {
                if let Some(ident) = defined(item) {
                    self.name(module, ident.to_string(), Name::Item);
                }
            }
        }
    }

    fn path_of(&self, module: ModuleId, last: &str) -> Vec<String> {
        let mut path = vec![last.to_owned()];
        let mut at = module;
        while let Some(parent) = self.modules[at].parent {
            let names = &self.modules[parent].names;
            let is = |entry: &Name| matches!(entry, Name::Module(id) if *id == at);
            // A module that is being added has no name in its parent yet: its file names it.
            let name = names.iter().find(|(_, all)| all.iter().any(is)).map(|(n, _)| n.clone());
            path.insert(0, name.unwrap_or_else(|| self.file_stem(at)));
            at = parent;
        }
        path.insert(0, "crate".to_owned());
        path
    }

    fn file_stem(&self, module: ModuleId) -> String {
        let path = self.files[self.modules[module].file].trim_end_matches("/mod.rs");
        path.rsplit('/').next().expect("a name").trim_end_matches(".rs").to_owned()
    }

    pub fn root(&self, module: ModuleId) -> ModuleId {
        std::iter::successors(Some(module), |&id| self.modules[id].parent).last().expect("itself")
    }

    /// Does the module define anything, or only show what others define?
    pub fn has_items(&self, module: ModuleId) -> bool {
        self.modules[module].names.values().flatten().any(|name| matches!(name, Name::Item))
    }

    /// Is `inner` the module `outer` or below it?
    pub fn is_within(&self, inner: ModuleId, outer: ModuleId) -> bool {
        std::iter::successors(Some(inner), |&id| self.modules[id].parent).any(|id| id == outer)
    }
}

fn defined(item: &Item) -> Option<&syn::Ident> {
    Some(match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::TraitAlias(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Union(i) => &i.ident,
        _ => return None,
    })
}

/// One name that a `use` brings in.
pub struct Leaf {
    pub path: Vec<String>,
    /// Under which name; None for `*`.
    pub name: Option<String>,
    pub line: usize,
}

/// All names that a `use` brings in.
pub fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let mut all = vec![];
    collect(tree, &mut vec![], &mut all);
    all
}

fn collect(tree: &UseTree, prefix: &mut Vec<String>, all: &mut Vec<Leaf>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            collect(&path.tree, prefix, all);
            prefix.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                collect(tree, prefix, all);
            }
        }
        UseTree::Name(name) => {
            let line = name.ident.span().start().line;
            all.push(leaf(prefix, name.ident.to_string(), None, line));
        }
        UseTree::Rename(rename) => {
            let line = rename.ident.span().start().line;
            let new = rename.rename.to_string();
            all.push(leaf(prefix, rename.ident.to_string(), Some(new), line));
        }
        UseTree::Glob(glob) => {
            let line = glob.star_token.spans[0].start().line;
            all.push(Leaf { path: prefix.clone(), name: None, line });
        }
    }
}

fn leaf(prefix: &[String], last: String, new: Option<String>, line: usize) -> Leaf {
    let mut path = prefix.to_vec();
    // `use a::{self}` brings in `a`.
    if last != "self" {
        path.push(last);
    }
    let name = new.or_else(|| path.last().cloned());
    Leaf { path, name, line }
}

/// `pub use`, `pub(crate) use`: others reach the name through this module.
pub fn is_reexport(used: &syn::ItemUse) -> bool {
    !matches!(used.vis, Visibility::Inherited)
}
