//! Paths in the tokens of a macro, which no parser has read.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A path as it stands in the tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Path {
    pub segments: Vec<String>,
    pub line: usize,
    /// `name!`
    pub called: bool,
}

/// All paths in the tokens, in groups too. A lone name counts where it is called, is a macro's, or
/// is written like a type: everything else is most likely a variable.
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
    let called = tokens.get(at).and_then(is_punct) == Some('!')
        && matches!(tokens.get(at + 1), Some(TokenTree::Group(_)));
    let parenthesis = matches!(tokens.get(at),
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
    let like_a_type = segments[0].starts_with(char::is_uppercase);
    if segments.len() > 1 || called || parenthesis || like_a_type {
        all.push(Path { segments, line, called });
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
            all.push(Path { segments: prefix.to_vec(), line, called: false });
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
