//! Which characters a message may hold, and how long texts are cut. Library and command print paths, names and values of the environment, which
//! may hold any: one that a terminal obeys, or that shows other text than there is, is printed as `?`.

/// Whether the character is text: neither a control character (C0, DEL, C1) nor one that turns the direction of text,
/// joins it or hides it.
pub fn is_text(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The character, or `?` in place of one that is no text.
pub fn shown(c: char) -> char {
    if is_text(c) { c } else { '?' }
}

/// The begin of a text: at most this many bytes, cut at a character boundary.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_or_hides_is_no_text() {
        let shown: String = "aß漢 \x1b[1m\x7f\u{85}\u{9b}31m\u{9f}\u{202e}\u{200b}\u{2066}\n"
            .chars()
            .map(shown)
            .collect();
        assert_eq!(shown, "aß漢 ?[1m???31m?????");
    }
}
