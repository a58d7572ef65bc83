//! Events after which driver calls may bypass the recorder. The recorder writes one note (`Definition::Note`) for each
//! kind. `vramtrace doctor` recognises the note of [`Escape::SecondDriver`] by its text.

/// A kind of event after which driver calls may bypass the recorder. The numbers are bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Escape {
    /// `dlopen` with `RTLD_DEEPBIND`.
    DeepBind = 1,
    /// `dlmopen` into another namespace.
    Namespace = 2,
    /// A `longjmp` out of a driver call.
    LongJump = 4,
    /// A `dlopen` of another file of the driver.
    SecondDriver = 8,
}

impl Escape {
    pub const ALL: [Escape; 4] =
        [Escape::DeepBind, Escape::Namespace, Escape::LongJump, Escape::SecondDriver];

    /// The text of the note.
    pub fn text(self) -> &'static str {
        match self {
            Escape::DeepBind => {
                "a library was opened with RTLD_DEEPBIND: driver calls that it makes may not be recorded"
            }
            Escape::Namespace => {
                "a library was opened in a separate namespace (dlmopen): driver calls that it \
                 makes are not recorded"
            }
            Escape::LongJump => {
                "a longjmp left a driver call: memory that the call allocated is not recorded, and \
                 the requested bytes stay counted towards the cap"
            }
            Escape::SecondDriver => {
                "a second driver file was opened: calls of it are not seen, and under a cap they \
                 are refused"
            }
        }
    }
}
