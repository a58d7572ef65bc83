//! Paths in tokens, those of macros too, which no parser has read; and which items only tests have.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Is the item absent from every build without `cfg(test)`?
pub fn only_in_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<Meta>().is_ok_and(|condition| !can_hold(&condition))
    })
}

/// Can the condition hold where `test` does not? Every other option may be either.
fn can_hold(condition: &Meta) -> bool {
    let Meta::List(list) = condition else { return !condition.path().is_ident("test") };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    match parts {
        Ok(parts) if list.path.is_ident("all") => parts.iter().all(can_hold),
        Ok(parts) if list.path.is_ident("any") => parts.iter().any(can_hold),
        _ => true,
    }
}

/// A path as it stands in the tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Path {
    pub segments: Vec<String>,
    pub line: usize,
}

/// All paths of several segments in the tokens, in groups too.
pub fn paths(tokens: &TokenStream) -> Vec<Path> {
    let mut all = vec![];
    walk(tokens.clone(), &mut all);
    all
}

fn walk(tokens: TokenStream, all: &mut Vec<Path>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            // `pub(in path)` says who may see, and uses nothing.
            TokenTree::Ident(word) if word == "pub" => {
                at += 1 + usize::from(matches!(tokens.get(at + 1), Some(TokenTree::Group(_))));
            }
            TokenTree::Group(group) => {
                walk(group.stream(), all);
                at += 1;
            }
            TokenTree::Ident(_) if !continues(&tokens, at) => at = path(&tokens, at, &[], all),
            _ => at += 1,
        }
    }
}

/// Does something stand before the name that makes it a field, a lifetime or a macro's variable?
fn continues(tokens: &[TokenTree], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).and_then(|i| is_punct(&tokens[i]));
    match before(1) {
        // A range's end, `0..name`, is a name of its own.
        Some('.') => before(2) != Some('.'),
        // `$crate` begins a path; `$name` stands for what the caller writes.
        Some('$') => !is_ident(&tokens[at], "crate"),
        Some('\'') => true,
        // `::name` is another crate's.
        Some(':') => before(2) == Some(':'),
        _ => false,
    }
}

/// Reads the path that begins at `at`, after `prefix`; where it ends.
fn path(tokens: &[TokenTree], mut at: usize, prefix: &[String], all: &mut Vec<Path>) -> usize {
    let mut segments = prefix.to_vec();
    let line = tokens[at].span().start().line;
    loop {
        let TokenTree::Ident(ident) = &tokens[at] else { unreachable!("the caller has looked") };
        segments.push(ident.to_string());
        at += 1;
        if !is_path_separator(tokens, at) {
            break;
        }
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(_)) => at += 2,
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                use_group(group.stream(), &segments, all);
                return at + 3;
            }
            // `*`, `$name` or `<`: what stands before it is all that is known.
            _ => break,
        }
    }
    if segments.len() > 1 {
        all.push(Path { segments, line });
    }
    at
}

/// The names in `prefix::{a, b::c, self}`.
fn use_group(tokens: TokenStream, prefix: &[String], all: &mut Vec<Path>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if is_ident(&tokens[at], "self") {
            let line = tokens[at].span().start().line;
            all.push(Path { segments: prefix.to_vec(), line });
            at += 1;
        } else if is_ident(&tokens[at], "as") {
            at += 2;
        } else if matches!(tokens[at], TokenTree::Ident(_)) {
            at = path(&tokens, at, prefix, all);
        } else {
            at += 1;
        }
    }
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |i: usize| tokens.get(i).and_then(is_punct) == Some(':');
    colon(at) && colon(at + 1)
}

fn is_punct(token: &TokenTree) -> Option<char> {
    match token {
        TokenTree::Punct(punct) => Some(punct.as_char()),
        _ => None,
    }
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}
