//! Every import of one file by another.

use std::collections::{HashMap, HashSet};

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};
use syn::{Expr, Item, Lit, Meta, Stmt};

use crate::condition::{attributes, only_in_tests};
use crate::resolve::Target;
use crate::tokens;
use crate::tree::{FileId, Leaf, ModuleId, Tree, is_reexport, leaves};

/// One file names something of another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Import {
    pub from: FileId,
    pub line: usize,
    pub to: FileId,
    /// The path as it is written.
    pub path: String,
    /// Brings in a module's name alone: what is then used of it is imported where it is used.
    pub name_of_module: bool,
}

/// All imports between the tree's files, in the order of files and lines.
pub fn find(tree: &Tree) -> Vec<Import> {
    let uses = tree.modules.iter().map(|module| private_uses(&module.items)).collect();
    let mut finder = Finder { tree, module: 0, uses, blocks: vec![], found: HashSet::new() };
    for module in 0..tree.modules.len() {
        finder.module = module;
        for item in &tree.modules[module].items {
            finder.visit_item(item);
        }
    }
    let mut all: Vec<Import> = finder.found.into_iter().collect();
    all.sort();
    all
}

fn private_uses(items: &[Item]) -> HashSet<String> {
    let mut names = HashSet::new();
    for item in items {
        if let Item::Use(used) = item
            && !is_reexport(used)
        {
            names.extend(leaves(&used.tree).into_iter().filter_map(|leaf| leaf.name));
        }
    }
    names
}

/// What stands in the file, which says what an import of a module's name is.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Use,
    Glob,
    Reexport,
    Path,
    Tokens,
}

struct Finder<'t> {
    tree: &'t Tree,
    module: ModuleId,
    /// Names that each module's own `use` brings in, and no one else may see.
    uses: Vec<HashSet<String>>,
    /// Names that `use` and items bring into the blocks around.
    blocks: Vec<HashMap<String, Option<Vec<String>>>>,
    found: HashSet<Import>,
}

impl Finder<'_> {
    fn add(&mut self, path: &[String], line: usize, form: Form) {
        let Some(full) = self.out_of_blocks(path) else { return };
        if matches!(form, Form::Path | Form::Tokens) && self.is_imported(path) {
            return;
        }
        for target in self.tree.resolve(self.module, &full) {
            let Some(to) = self.tree.file_of(target) else { continue };
            let from = self.tree.modules[self.module].file;
            if from == to || !self.counts(target, path, form) {
                continue;
            }
            let name_of_module = self.only_names(target, form);
            let path = path.join("::") + if form == Form::Glob { "::*" } else { "" };
            self.found.insert(Import { from, line, to, path, name_of_module });
        }
    }

    /// Does a `use` of this module or block bring in the item, so that it counted there?
    fn is_imported(&self, path: &[String]) -> bool {
        let first = &path[0];
        let in_block = self.blocks.iter().any(|names| matches!(names.get(first), Some(Some(_))));
        (in_block || self.uses[self.module].contains(first))
            && self
                .out_of_blocks(&path[..1])
                .map(|full| self.tree.resolve(self.module, &full))
                .is_some_and(|targets| !targets.iter().any(|t| matches!(t, Target::Module(_))))
    }

    /// The path with a block's `use` put in. None for an item of the block itself.
    fn out_of_blocks(&self, path: &[String]) -> Option<Vec<String>> {
        let mut path = path.to_vec();
        for names in self.blocks.iter().rev() {
            match names.get(path.first()?) {
                Some(Some(alias)) if alias.first() == path.first() => {}
                Some(Some(alias)) => {
                    path = alias.iter().cloned().chain(path.drain(1..)).collect();
                }
                Some(None) => return None,
                None => {}
            }
        }
        Some(path)
    }

    fn counts(&self, target: Target, path: &[String], form: Form) -> bool {
        match (form, target) {
            // What a module shows of its own children is no import of them, as `mod` is none.
            (Form::Reexport, Target::Module(id) | Target::Item(id)) => {
                !self.tree.is_within(id, self.module)
            }
            // A module is no value and no type: it is a variable of the same name.
            (Form::Path, Target::Module(_)) => false,
            (Form::Tokens, Target::Module(_)) => path.len() > 1,
            _ => true,
        }
    }

    fn only_names(&self, target: Target, form: Form) -> bool {
        let Target::Module(id) = target else { return false };
        match form {
            Form::Use => true,
            Form::Glob => !self.tree.has_items(id),
            _ => false,
        }
    }

    fn add_tokens(&mut self, tokens: &TokenStream) {
        for path in tokens::paths(tokens) {
            self.add(&path.segments, path.line, Form::Tokens);
            if path.called && path.segments.len() == 1 {
                self.add_macro(&path.segments[0], path.line);
            }
        }
    }

    /// A macro in textual scope, which no path leads to.
    fn add_macro(&mut self, name: &str, line: usize) {
        let Some((definer, _)) = self.tree.macros.get(name) else { return };
        let from = self.tree.modules[self.module].file;
        let to = self.tree.modules[*definer].file;
        if from != to {
            let path = format!("{name}!");
            self.found.insert(Import { from, line, to, path, name_of_module: false });
        }
    }

    /// The paths that a macro's definition leaves to its caller's scope.
    fn add_expansion(&mut self, name: &str, line: usize) {
        let Some((definer, tokens)) = self.tree.macros.get(name) else { return };
        if *definer == self.module {
            return;
        }
        for path in tokens::paths(tokens) {
            if path.segments.len() > 1 && !["crate", "self"].contains(&&*path.segments[0]) {
                self.add(&path.segments, line, Form::Tokens);
            }
        }
    }

    fn names_of(&self, block: &syn::Block) -> HashMap<String, Option<Vec<String>>> {
        let mut names = HashMap::new();
        for statement in &block.stmts {
            match statement {
                Stmt::Item(Item::Use(used)) => {
                    for Leaf { path, name, .. } in leaves(&used.tree) {
                        names.extend(name.map(|name| (name, Some(path))));
                    }
                }
                Stmt::Item(Item::Fn(f)) => {
                    names.insert(f.sig.ident.to_string(), None);
                }
                Stmt::Item(Item::Struct(s)) => {
                    names.insert(s.ident.to_string(), None);
                }
                _ => {}
            }
        }
        names
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !only_in_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(i) => &i.attrs,
            syn::ImplItem::Fn(i) => &i.attrs,
            syn::ImplItem::Type(i) => &i.attrs,
            _ => &vec![],
        };
        if !only_in_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !only_in_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !only_in_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_item_use(&mut self, used: &'ast syn::ItemUse) {
        for leaf in leaves(&used.tree) {
            let form = match leaf.name {
                _ if is_reexport(used) => Form::Reexport,
                Some(_) => Form::Use,
                None => Form::Glob,
            };
            self.add(&leaf.path, leaf.line, form);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.blocks.push(self.names_of(block));
        visit::visit_block(self, block);
        self.blocks.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let line = path.segments.first().map_or(0, |s| s.ident.span().start().line);
        if path.leading_colon.is_none() {
            let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.add(&names, line, Form::Path);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if let Some(last) = called.path.segments.last() {
            let line = last.ident.span().start().line;
            let names: Vec<String> =
                called.path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.add(&names, line, Form::Tokens);
            if names.len() == 1 {
                self.add_macro(&names[0], line);
            }
            self.add_expansion(&last.ident.to_string(), line);
        }
        self.add_tokens(&called.tokens);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        match &attribute.meta {
            Meta::List(list) => self.add_tokens(&list.tokens),
            Meta::NameValue(pair) if !pair.path.is_ident("doc") => self.add_literal(&pair.value),
            _ => {}
        }
    }

    // `pub(in path)` says who may see, and uses nothing.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}

impl Finder<'_> {
    /// A path in a string, as `#[serde(with = "..")]` has it.
    fn add_literal(&mut self, value: &Expr) {
        if let Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) = value
            && let Ok(path) = text.parse::<syn::Path>()
        {
            self.visit_path(&path);
        }
    }
}
