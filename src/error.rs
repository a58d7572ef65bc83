//! How a command ends: the exit status, and what is wrong with what it was given.

use std::fmt::Display;

/// The exit status of a command that ran: 0 done, 1 the finding asked for was there, or what a
/// command that was run ended with.
pub type Outcome = Result<u8, Failure>;

/// Done, and the caller asked for no finding that is there.
pub const DONE: u8 = 0;
/// The finding asked for was there.
pub const FOUND: u8 = 1;

/// Something was wrong with what we were given. The message names the file, option or variable,
/// its value, and what would be right.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

impl Failure {
    /// Bad input: exit 2.
    pub fn new(message: impl Display) -> Failure {
        Failure { code: 2, message: message.to_string() }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error)
    }
}
