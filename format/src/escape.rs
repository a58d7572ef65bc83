//! Events after which driver calls may bypass the recorder. The recorder writes one note (`Definition::Note`) for each
//! kind. `vramtrace doctor` recognises the note of [`Escape::SecondDriver`] by its text.

use crate::scalar::numbered_enum;

numbered_enum! {
    /// A kind of event after which driver calls may bypass the recorder. The numbers are bits; the name is the text of the
    /// note.
    pub enum Escape {
        /// `dlopen` with `RTLD_DEEPBIND`.
        DeepBind = 1 =>
            "a library was opened with RTLD_DEEPBIND: driver calls that it makes may not be recorded",
        /// `dlmopen` into another namespace.
        Namespace = 2 =>
            "a library was opened in a separate namespace (dlmopen): driver calls that it makes are not recorded",
        /// A `longjmp` out of a driver call.
        LongJump = 4 =>
            "a longjmp left a driver call: memory that the call allocated is not recorded, and the requested bytes stay \
             counted towards the cap",
        /// A `dlopen` of another file of the driver.
        SecondDriver = 8 =>
            "a second driver file was opened: calls of it are not seen, and under a cap they are refused",
    }
}
