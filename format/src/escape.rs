//! Events that may let driver calls bypass the recorder. The recorder writes a remark for each
//! (`Definition::Note`), once, which `vramtrace doctor` recognises.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Escape {
    DeepBind = 1,
    Namespace = 2,
    LongJump = 4,
    SecondDriver = 8,
}

impl Escape {
    pub const ALL: [Escape; 4] =
        [Escape::DeepBind, Escape::Namespace, Escape::LongJump, Escape::SecondDriver];

    pub fn text(self) -> &'static str {
        match self {
            Escape::DeepBind => {
                "a library was opened with RTLD_DEEPBIND: driver calls that it makes may not be seen"
            }
            Escape::Namespace => {
                "a library was opened in a separate name space (dlmopen): driver calls that it \
                 makes are not seen"
            }
            Escape::LongJump => {
                "a longjmp left a driver call: what that call took is not seen, and what was \
                 promised to it stays counted by a cap"
            }
            Escape::SecondDriver => {
                "a second driver file was opened: calls of it are not seen, and under a cap they \
                 are refused"
            }
        }
    }
}
